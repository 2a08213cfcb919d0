"""What is measured of one trained classifier, each by a function of its own."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from leanbayes.analysis.log_alpha import AlphaReport, scaled_layers
from leanbayes.compression.prune import CRITERIA, density, prune
from leanbayes.conversion.convert import deterministic
from leanbayes.lab.data import Examples
from leanbayes.layers import RandomMap
from leanbayes.metrics import average
from leanbayes.models.random_maps import kl, map_posteriors, named_kl, random_maps
from leanbayes.posteriors.independent import masked
from leanbayes.prediction.predict import predict
from leanbayes.priors import ARD, LogUniform
from research.papers.variance.ablation import permute_scales, zero_means
from research.papers.variance.split_at_noise import draws
from research.papers.variance.trained import Trained, arriving, as_json, one_sample
from research.publishing.rounding import rounded

KEPT = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Shares of weights that a pruned layer keeps."""
_ELBO_SAMPLES = 10
_PERMUTATIONS = 5
_PAIRS = 10
_BINS = 20
_SLICE = 5000
_TIED = 1e-5
_SPARSE = 3.0


def accuracies(trained: Trained) -> dict[str, Any]:
    """Return accuracies by mean propagation, of one sample (on average) and of averaged samples."""
    drawn = trained.predict()
    scores = {
        "mean": trained.by_means(),
        "sample": average(one_sample(drawn, trained.y).double().mean(0)),
        "ensemble": trained.right(drawn),
    }
    return {name: as_json(score) for name, score in scores.items()}


def elbo(trained: Trained, before: nn.Module, train: Examples) -> dict[str, Any]:
    """Return the ELBO of the whole training set, summed: ``Σ_n E_q log p(y_n | x_n, W) − KL``.

    The data term is the log likelihood averaged over 10 samples, not the log of an average.
    Without random layers there is no KL.
    """
    data = square = 0.0
    for start in range(0, len(train), _SLICE):
        part = train[start : start + _SLICE]
        x = arriving(before, part, trained.batch_size)
        drawn = predict(
            trained.sampled,
            x,
            samples=_ELBO_SAMPLES,
            batch_size=trained.batch_size,
            seed=trained.seed + start,
        )
        terms = trained.likelihood.log_prob(drawn.samples, part.y).double().mean(0)
        data, square = data + float(terms.sum()), square + float(terms.square().sum())
    error = max(square - data**2 / len(train), 0.0) ** 0.5
    values = {"samples": _ELBO_SAMPLES, "data": rounded(data), "error": rounded(error)}
    if draws(trained.rest):
        with torch.no_grad():
            cost = float(kl(trained.rest))
        values |= {"kl": rounded(cost), "elbo": rounded(data - cost)}
    return values


def alphas(report: AlphaReport, model: nn.Module) -> dict[str, Any]:
    """Log α of every random layer; ``None`` stands for ∞, and where there is no closed form."""
    with torch.no_grad():
        kls = {name: float(value) for name, value in named_kl(model).items()}
    layers = scaled_layers(model, biases=True)
    return {
        row.name: {
            "weights": row.weights,
            "log_alpha": [_finite(value) for value in row.log_alpha],
            "variance_layer": row.is_variance_layer,
            "output_snr": _finite(row.output_snr),
            "distance": _finite(row.distance),
            "bound": _finite(row.bound),
            "bound_says_nothing": row.bound_says_nothing,
            "kl": rounded(kls[row.name]),
            "kl_of_log_alpha": _finite(kl_of_log_alpha(layers[row.name])),
        }
        for row in report.rows
    }


def _finite(value: float | None) -> float | None:
    found: float | None = None if value is None else rounded(value)
    return found


@torch.no_grad()
def kl_of_log_alpha(layer: RandomMap) -> float | None:
    """The KL that the ratios α of a layer imply, by the published formulas of a single weight.

    Log-uniform: ``½ log(1 + 1/α) + 0.63576 (1 − sigmoid(1.8732 + 1.48695 log α))``; ARD:
    ``½ log(1 + 1/α)``; others give ``None``. A check on what the layer says itself.
    """
    spec, q = layer.prior.spec, layer.posterior()
    if not isinstance(spec, LogUniform | ARD) or not q.independent:
        return None
    inverse = q.log_inverse_alpha().double()[q.mean.expand(q.event_shape) != 0]
    total = 0.5 * torch.nn.functional.softplus(inverse).sum()
    if isinstance(spec, LogUniform):
        total = total + 0.63576 * torch.sigmoid(1.48695 * inverse - 1.87320).sum()
    return float(total)


def histograms(trained: Trained, draws: int) -> dict[str, Any]:
    """Return how accurate single samples are, and all of them averaged [variance, Figure 4].

    One draw of the ``weights`` for all images, and separate noise for each of the ``images``,
    as local reparameterization has it. Dropout draws for each image in both.
    """
    return {
        "weights": _histogram(trained, draws, coherent=trained.sampled is trained.rest),
        "images": _histogram(trained, draws, coherent=False),
    }


def _histogram(trained: Trained, draws: int, *, coherent: bool) -> dict[str, Any]:
    drawn = trained.predict(samples=draws, coherent=coherent)
    right = one_sample(drawn, trained.y).sum(1)
    single, images = right.double() / len(trained.y), len(trained.y)
    low, high = int(right.min()), int(right.max())
    width = -(-(high - low + 1) // _BINS)
    counts = torch.bincount((right - low) // width)
    return {
        "draws": draws,
        "low": rounded(low / images),
        "high": rounded(high / images),
        "mean": rounded(float(single.mean())),
        "std": rounded(float(single.std())) if draws > 1 else 0.0,
        "start": rounded((low - 0.5) / images),
        "width": rounded(width / images),
        "counts": counts.tolist(),
        "ensemble": as_json(trained.right(drawn)),
    }


def pruning(trained: Trained, layers: Sequence[str]) -> dict[str, Any]:
    """Return the accuracy of averaged samples at every share of weights that layers keep.

    By σ [variance, Figure 5] and by ``|μ| / σ`` [variance, section 7], which ranks weights at
    random where all means are zero or all ratios are equal. Sparse variational dropout keeps the
    weights with log α ≤ 3: of a variance layer ``sparse`` none.
    """
    include, whole = tuple(layers), trained.averaged()
    curves: dict[str, Any] = {"layers": list(layers), "samples": trained.samples}
    for by in ("scale", "snr"):
        points = [{"kept": 1.0, **as_json(whole)}]
        for share in KEPT:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what is shown here: snr destroys variance layers
                pruned = prune(trained.rest, by, keep=share, include=include)
            points.append(_point(trained, pruned, layers))
        curves[by] = points
    chosen = {name: scaled_layers(trained.rest)[name] for name in layers}
    scores = [CRITERIA["snr"].importance(layer) for layer in chosen.values()]
    curves["snr_at_random"] = all(_tied(score) for score in scores)
    masks = {name: CRITERIA["log_alpha"].importance(layer) for name, layer in chosen.items()}
    sparse = map_posteriors(
        trained.rest,
        lambda name, old: masked(old, masks[name] >= -_SPARSE) if name in masks else old,
    )
    return {**curves, "sparse": _point(trained, sparse, layers)}


def _point(trained: Trained, pruned: nn.Module, layers: Sequence[str]) -> dict[str, float]:
    """Return what is left of the weights of layers, and the accuracy with it."""
    sizes = {n: m.posterior().event_shape.numel() for n, m in random_maps(pruned) if n in layers}
    shares = density(pruned)
    kept = sum(shares[name] * size for name, size in sizes.items()) / sum(sizes.values())
    return {"kept": rounded(kept), **as_json(trained.averaged(pruned))}


def _tied(score: Tensor) -> bool:
    """Return whether scores differ by rounding alone."""
    return bool(score.max() - score.min() <= _TIED * score.max())


def controls(trained: Trained, layers: Sequence[str]) -> dict[str, Any]:
    """Accuracies of averaged samples without means, and with σ that change places in a layer."""
    include = tuple(layers)
    permuted = [
        trained.averaged(permute_scales(trained.rest, seed=seed, include=include))
        for seed in range(_PERMUTATIONS)
    ]
    values = torch.tensor([score.value for score in permuted], dtype=torch.float64)
    return {
        "zero_means": as_json(trained.averaged(zero_means(trained.rest, include=include))),
        "permuted": {
            "value": rounded(float(values.mean())),
            "error": rounded(float(values.std() / len(values) ** 0.5)),
            "permutations": len(values),
            "least": rounded(float(values.min())),
            "most": rounded(float(values.max())),
        },
    }


def antithetic(trained: Trained) -> dict[str, Any] | None:
    """Return how often a draw and its mirror image, ``ε`` and ``−ε``, are both right; one; none.

    A network that is odd in its noise is never right at both, so that one sample is right at most
    half of the time; ``centered`` has the running means of the normalization at zero. ``None`` if
    not the first layer alone draws.
    """
    layers = dict(trained.rest.named_children())
    drawing = [name for name, layer in layers.items() if draws(layer)]
    if not isinstance(trained.rest, nn.Sequential) or drawing != list(layers)[:1]:
        return None
    shares = _mirrored(trained, trained.rest)
    return {**shares, "centered": _mirrored(trained, _centered(trained.rest))}


def _mirrored(trained: Trained, rest: nn.Module) -> dict[str, float]:
    drawn = trained.predict(_WithMirror(rest), _PAIRS).samples
    both = (drawn.argmax(-1) == trained.y.unsqueeze(-1)).sum(-1)
    names: Mapping[str, int] = {"both": 2, "one": 1, "none": 0}
    return {name: rounded(float((both == right).double().mean())) for name, right in names.items()}


class _WithMirror(nn.Module):
    """Outputs ``[batch, 2, classes]`` of a draw and of its mirror image, ``2 E[y] − y``."""

    def __init__(self, rest: nn.Module) -> None:
        super().__init__()
        self.first, *others = rest.children()
        self.middle, self.others = deterministic(self.first), nn.Sequential(*others)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return torch.stack((self.others(y), self.others(2 * self.middle(x) - y)), 1)


def _centered(model: nn.Module) -> nn.Module:
    """Return a copy whose batch normalization takes no mean away."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None:
            layer.running_mean.zero_()
    return model
