"""How a sparse network comes about: what is left of it and how good it is, after every epoch.

The figures of the matrix-normal paper show accuracy, ELBO and compression over the training.
"""

import torch
from pydantic import Field
from torch import nn

from leanbayes.analysis.log_alpha import scaled_layers
from leanbayes.compression.prune import CRITERIA, Groups
from leanbayes.lab.data import Examples
from leanbayes.lab.measurements.base import (
    Measurement,
    Subject,
    register_measurement,
    require_random_weights,
)
from leanbayes.likelihoods import Likelihood
from leanbayes.metrics import average
from leanbayes.models.random_maps import kl
from leanbayes.prediction.predict import predict

_GROUPS: dict[Groups, str] = {"weight": "weights", "row": "rows", "column": "columns"}


@register_measurement("sparse_curves")
class SparseCurves(Measurement):
    """What is left of the model, and how good it is, after every epoch in ``metrics.csv``.

    Shares of weights, rows and columns with a relevance of log α < 3, accuracy and −ELBO on test
    examples; see :func:`sparse_curves`.
    """

    examples: int = Field(default=10_000, ge=1)
    samples: int = Field(default=5, ge=1)

    def check(self, model: nn.Module, *, classes: bool) -> None:
        require_random_weights("sparse_curves", model, classes=classes)

    def after_epoch(self, subject: Subject) -> dict[str, float]:
        return sparse_curves(
            subject.model,
            subject.dataset.test,
            subject.likelihood,
            self,
            data_size=subject.data_size,
            seed=subject.seed,
            batch_size=subject.batch_size,
        )


def relevant_shares(model: nn.Module) -> dict[str, float]:
    """The shares of weights, rows and columns that :func:`~leanbayes.prune` by relevance keeps.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(1e-4), lb.priors.ARD())
        >>> relevant_shares(model)
        {'left/weights': 1.0, 'left/rows': 1.0, 'left/columns': 1.0}
    """
    criterion, layers = CRITERIA["relevance"], scaled_layers(model).values()
    assert criterion.threshold is not None
    shares = {}
    for group, name in _GROUPS.items():
        scores = torch.cat([criterion.importance(layer, group).flatten() for layer in layers])
        shares[f"left/{name}"] = float((scores >= criterion.threshold).double().mean())
    return shares


def sparse_curves(
    model: nn.Module,
    examples: Examples,
    likelihood: Likelihood,
    spec: SparseCurves,
    *,
    data_size: int,
    seed: int,
    batch_size: int = 1000,
) -> dict[str, float]:
    """Return what is left of a model if it is pruned by relevance, and how good it is as a whole.

    The −ELBO is per example: the average NLL of the samples, and the whole KL by the number of
    training examples. The global generator is left as it was.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.ARD())
        >>> made = Examples(torch.randn(20, 3), torch.zeros(20, dtype=torch.long))
        >>> spec = SparseCurves(examples=10, samples=2)
        >>> likelihood = lb.likelihoods.Categorical()
        >>> list(sparse_curves(model, made, likelihood, spec, data_size=20, seed=0))[:3]
        ['left/weights', 'left/rows', 'left/columns']
    """
    x, y = examples[: spec.examples].x, examples[: spec.examples].y
    drawn = predict(
        model, x, samples=spec.samples, batch_size=batch_size, seed=seed, likelihood=likelihood
    )
    with torch.no_grad():
        gibbs = average(-likelihood.log_prob(drawn.samples, y).mean(0)).value
        divergence = float(kl(model)) / data_size
    right = drawn.sample_log_probs.logsumexp(0).argmax(-1) == y
    return {
        **relevant_shares(model),
        "test/accuracy": float(right.double().mean()),
        "test/average_nll": gibbs,
        "test/negative_elbo": gibbs + divergence,
    }
