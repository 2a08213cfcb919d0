"""Tables of what goes together, found by trying every pair."""

import warnings

import torch
from torch import nn

import leanbayes as lb

POSTERIORS = (
    *(lb.posteriors.Point(), lb.MeanField(), lb.KTied(), lb.posteriors.MatrixNormal()),
    *(lb.posteriors.MatrixNormal(rank=2), lb.posteriors.MatrixNormal(diagonal=True)),
    *(lb.posteriors.ZeroMean(), lb.posteriors.VariationalDropout("weight"), lb.Rank1(members=2)),
    lb.posteriors.LowRank(rank=2),
)
PRIORS = (
    *(lb.priors.Normal(1.0), lb.priors.He(), lb.priors.Centered(0.1), lb.priors.Hierarchical()),
    *(lb.priors.ARD(), lb.priors.GroupARD(), lb.priors.LogUniform(), lb.priors.StudentT(3.0)),
    *(lb.priors.Cauchy(1.0), lb.priors.HalfCauchy(1.0), lb.priors.LogNormal(1.0)),
    *(lb.priors.Laplace(1.0), lb.priors.ScaleMixture(), lb.priors.Flat()),
)
LAYERS = {
    "Linear": (lambda: nn.Linear(4, 4), (4, 4)),
    "Conv1d": (lambda: nn.Conv1d(2, 4, 3), (4, 2, 8)),
    "Conv2d": (lambda: nn.Conv2d(2, 4, 3), (4, 2, 8, 8)),
    "Conv3d": (lambda: nn.Conv3d(2, 4, 3), (4, 2, 4, 4, 4)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 4, 3), (4, 2, 4, 4)),
    "Embedding": (lambda: nn.Embedding(5, 4), None),
    "LSTM": (lambda: nn.LSTM(4, 4, batch_first=True), (4, 3, 4)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2, batch_first=True), (4, 3, 4)),
}
ESTIMATORS = ("auto", "local", "weights", "flipout", "mean")


def label(spec):
    """A spec as one writes it."""
    return f"`{spec!r}`".replace("|", "\\|")


def _works(trial):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trial()
        except (ValueError, TypeError, NotImplementedError):
            return False
    return True


def _input(kind):
    shape = LAYERS[kind][1]
    return torch.randint(5, (4, 3)) if shape is None else torch.randn(shape)


def _run(posterior, kind, estimator="auto", prior=None):
    model = lb.convert(LAYERS[kind][0](), posterior, prior or lb.priors.Flat(), estimator=estimator)
    x = _input(kind)
    model(x, x, x) if kind == "MultiheadAttention" else model(x)
    return lb.kl(model)


def pairs(columns, trial):
    """Whether each posterior works with each column."""
    return {
        (posterior, column): _works(lambda p=posterior, c=column: trial(p, c))
        for posterior in POSTERIORS
        for column in columns
    }


def table(columns, names, trial):
    """Rows of Markdown: posteriors by columns, each cell ``yes`` or a dash."""
    found = pairs(columns, trial)
    lines = ["| Posterior | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for posterior in POSTERIORS:
        cells = ("yes" if found[posterior, column] else "–" for column in columns)
        lines.append(f"| {label(posterior)} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def tables():
    """Posteriors against priors, layers and estimators."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [
            *("## Priors", "", "A cell is `yes` where a KL exists, for a linear layer.", ""),
            *table(PRIORS, [label(p) for p in PRIORS], lambda q, p: _run(q, "Linear", prior=p)),
            *("## Layers", ""),
            *table(tuple(LAYERS), [f"`{name}`" for name in LAYERS], _run),
            *("## Estimators", "", "For a linear layer.", ""),
            *table(
                ESTIMATORS,
                [f"`{name}`" for name in ESTIMATORS],
                lambda q, name: _run(q, "Linear", getattr(lb.estimators, name)),
            ),
        ]
