"""Fit of a trained model to data: samples beside the mean network, scales beside their start."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes.analysis.log_alpha import has_scales
from leanbayes.estimators import mean
from leanbayes.likelihoods import Likelihood
from leanbayes.metrics import average
from leanbayes.models.random_maps import random_maps, using
from leanbayes.prediction.predict import Method, Prediction
from leanbayes.training.batches import batches_of
from leanbayes.training.objective import BatchObjective

_MOST = 2000
"""So many examples are enough to see what is wrong."""
_BATCH, _SAMPLES = 250, 20


class Goodness(NamedTuple):
    """How well a model fits some data."""

    nll: float
    error: float
    cost: float
    cost_error: float
    explained: float
    accuracy: float | None

    def __str__(self) -> str:
        right = "" if self.accuracy is None else f"accuracy {self.accuracy:.1%}, "
        return f"{right}NLL {self.nll:.3g}, {self.nll - self.cost:.3g} without noise"


@torch.no_grad()
def goodness_of_fit(
    model: nn.Module,
    data: Any,
    likelihood: Likelihood,
    target: str = "labels",
    output: Callable[[Any], Tensor] | None = None,
    method: Method = "samples",
) -> Goodness:
    """Measure some examples of data with samples and with the mean network."""
    objective = BatchObjective(model, likelihood, 1, target=target, output=output)
    batches = list(islice(batches_of(data, _BATCH, 1).epoch(None), _MOST // _BATCH))
    y = torch.cat([objective.targets(batch) for batch in batches])

    def predicted(samples: int, **how: Any) -> Prediction:
        parts = [objective.predict(batch, samples, seed=0, **how).samples for batch in batches]
        return Prediction(torch.cat(parts, 1), likelihood)

    p = predicted(_SAMPLES, method=method)
    y = p.targets(y)
    with using(model, mean):
        without = predicted(1)
    losses, others = (-each.log_likelihood(y) for each in (p, without))
    nll, cost = average(losses), average(losses - others)
    right = (p.labels == y).float().mean().item() if p.has_classes else None
    explained = _explained(p, y, nll.value)
    return Goodness(nll.value, nll.error, cost.value, cost.error, explained, right)


def _explained(p: Prediction, y: Tensor, nll: float) -> float:
    if p.has_classes:
        shares = y.flatten().long().bincount().double() / y.numel()
        entropy = -float(torch.xlogy(shares, shares).sum())
        return 1 - nll / entropy if entropy else 0.0
    left = (y - p.mean).square().mean() / y.var(0, correction=0).mean()
    return 1 - float(left)


def scale_ratios(model: nn.Module) -> tuple[float, float] | None:
    """Return medians over layers of standard deviations over their start and over their prior's."""
    found = list(_ratios(model))
    if not found:
        return None
    starts, priors = zip(*found, strict=True)
    return median(starts), median(priors)


@torch.no_grad()
def _ratios(model: nn.Module) -> Iterator[tuple[float, float]]:
    for _, layer in random_maps(model):
        if not has_scales(layer) or "means" not in layer.posterior.roles.values():
            continue
        weight = torch.zeros_like(layer.op.unmatrix(layer.posterior().mean), device="cpu")
        with torch.random.fork_rng(devices=[]):
            start = layer.posterior.spec(weight, layer.op)()
        prior = layer.prior()
        now = layer.posterior().variance.median().sqrt()
        before = start.variance.median().sqrt()
        spread = getattr(prior, "variance", torch.tensor(math.nan)).median().sqrt()
        yield float(now / before), float(now / spread)
