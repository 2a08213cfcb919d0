"""What torch's distributions, and equally weighted mixtures of them, say about targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, TransformedDistribution, biject_to, constraints

from leanbayes import metrics
from leanbayes.errors import require
from leanbayes.metrics import Score, average

__all__ = [
    "cdf",
    "check_targets",
    "entropy",
    "example_log_prob",
    "has_mean",
    "is_binary",
    "is_finite",
    "log_mean",
    "quantiles",
    "scores_of_binary",
    "scores_of_classes",
    "value_log_probs",
]

_HALVINGS = 128

Cdf = Callable[[Tensor], Tensor]


def is_finite(law: Distribution) -> bool:
    """Whether the values of a target can be listed."""
    return bool(law.has_enumerate_support) and not law.event_shape


def is_binary(law: Distribution) -> bool:
    """Whether a target is on or off."""
    return is_finite(law) and law.support is constraints.boolean


def has_mean(law: Distribution) -> bool:
    """Whether targets are numbers that have a mean; torch gives NaN for those without."""
    try:
        return not bool(law.mean.isnan().all())
    except NotImplementedError:
        return False


def value_log_probs(law: Distribution) -> Tensor:
    """The log probabilities of every value that a target can take, along a new last axis."""
    return law.log_prob(law.enumerate_support(expand=False)).movedim(0, -1)


def cdf(law: Distribution) -> Cdf | None:
    """Its distribution function: torch's own, or a sum over finitely many numbers, or none."""
    base = law
    while isinstance(base, TransformedDistribution):
        base = base.base_dist
    if type(base).cdf is not Distribution.cdf:
        return law.cdf
    if not (is_finite(law) and has_mean(law)):
        return None
    values, probs = law.enumerate_support(expand=False), value_log_probs(law).exp().unbind(-1)
    pairs = list(zip(values, probs, strict=True))
    return lambda y: torch.stack([p * (value <= y) for value, p in pairs]).sum(0)


def check_targets(law: Distribution, y: Tensor) -> None:
    """Raise unless targets have the shape that a distribution speaks of; none is broadcast."""
    shape = law.batch_shape + law.event_shape
    if tuple(shape[len(shape) - y.ndim :]) != tuple(y.shape):
        raise ValueError(
            f"targets have shape {tuple(y.shape)} and the outputs speak of {tuple(shape)}; "
            "reshape one of them"
        )


def example_log_prob(law: Distribution, y: Tensor) -> Tensor:
    """Log density of ``y`` summed over all but the batch dimension."""
    check_targets(law, y)
    value: Tensor = law.log_prob(y)
    kept = len(law.batch_shape + law.event_shape) - y.ndim + 1
    return value if value.ndim <= kept else value.flatten(kept).sum(-1)


def log_mean(log_probs: Tensor) -> Tensor:
    """The log of probabilities averaged over the first axis."""
    return torch.logsumexp(log_probs, 0) - math.log(len(log_probs))


def entropy(log_probs: Tensor) -> Tensor:
    """The entropy over the last axis, in nats."""
    return torch.special.entr(log_probs.exp()).sum(-1)


def quantiles(cdf: Cdf, levels: Sequence[float], law: Distribution, like: Tensor) -> Tensor:
    """The least value whose distribution function reaches each level, ``[levels, *like.shape]``.

    Bisection, to the last bit or whole number: between the ends of a bracket that is doubled until
    it holds every level, on the real line that ``biject_to`` maps to the support of ``law``.
    """
    for level in levels:
        require(0 < level < 1, f"quantile {level} does not lie between 0 and 1")
    whole = law.support is not None and bool(law.support.is_discrete)
    values: Cdf = torch.floor if whole else biject_to(law.support)
    target = like.new_tensor(list(levels)).reshape(-1, *(1,) * like.ndim)
    low, high = (like.new_full((len(levels), *like.shape), end) for end in (-1.0, 1.0))
    for _ in range(_HALVINGS):
        too_high, too_low = cdf(values(low)) >= target, cdf(values(high)) < target
        if not bool((too_high | too_low).any()):
            break
        low, high = torch.where(too_high, 2 * low, low), torch.where(too_low, 2 * high, high)
    for _ in range(_HALVINGS):
        middle = ((low + high) / 2).floor() if whole else (low + high) / 2
        if not bool(((low < middle) & (middle < high)).any()):
            break
        below = cdf(values(middle)) < target
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return torch.where(cdf(values(high)).isnan(), torch.nan, values(high))


def scores_of_classes(log_probs: Tensor, y: Tensor) -> dict[str, Score]:
    """Of classes ``y [examples]``, from log probabilities ``[samples, examples, classes]``."""
    mixed = log_mean(log_probs)
    probs, total = mixed.exp(), entropy(mixed)
    values = {
        "accuracy": metrics.accuracy(probs, y),
        "brier": metrics.brier(probs, y),
        "ece": metrics.bootstrap(metrics.calibration_error, probs, y),
        "entropy": average(total),
        "mutual_information": average((total - entropy(log_probs).mean(0)).clamp_min(0)),
    }
    if len(log_probs) > 1:
        values["disagreement"] = metrics.disagreement(log_probs)
        values["kl_diversity"] = metrics.kl_diversity(log_probs)
        if bool((log_probs.argmax(-1) != y).any()):
            values["diversity"] = metrics.diversity(log_probs, y)
    return values


def scores_of_binary(probs: Tensor, labels: Tensor, y: Tensor) -> dict[str, Score]:
    """Of targets that are on or off; calibration where there is one an example, and areas where
    both occur.
    """
    values = {"accuracy": average((labels == y).double().reshape(len(y), -1).mean(-1))}
    truth, on = y.flatten().bool(), probs.flatten()
    if len(truth) != len(y):
        return values
    both = torch.stack([1 - on, on], -1)
    values["ece"] = metrics.bootstrap(metrics.calibration_error, both, truth.long())
    if bool(truth.any()) and not bool(truth.all()):
        for name, area in (("auc_pr", metrics.average_precision), ("auroc", metrics.auroc)):
            values[name] = metrics.bootstrap(area, on, truth, strata=truth)
    return values
