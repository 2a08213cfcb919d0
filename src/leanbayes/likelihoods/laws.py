"""What any torch distribution can say about targets, and what it cannot."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution, TransformedDistribution, constraints

__all__ = [
    "cdf",
    "check_targets",
    "example_log_prob",
    "has_mean",
    "is_binary",
    "is_finite",
    "value_log_probs",
]


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


def cdf(law: Distribution) -> Callable[[Tensor], Tensor] | None:
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
