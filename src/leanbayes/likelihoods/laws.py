"""What any torch distribution can say about targets, and what it cannot."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution, TransformedDistribution, constraints

__all__ = [
    "answers",
    "cdf",
    "check_targets",
    "example_log_prob",
    "has_classes",
    "has_mean",
    "is_binary",
    "is_discrete",
    "is_finite",
    "parameters",
    "value_log_probs",
]

_OF_CLASSES = ("probs", "log_probs", "labels", "entropy", "expected_entropy", "mutual_information")
_OF_MOMENTS = ("mean", "aleatoric", "epistemic", "variance")
_OF_CDF = ("cdf", "quantiles")


def is_finite(law: Distribution) -> bool:
    """Whether the values of a target can be listed."""
    return bool(law.has_enumerate_support) and not law.event_shape


def is_binary(law: Distribution) -> bool:
    """Whether a target is on or off."""
    return is_finite(law) and law.support is constraints.boolean


def is_discrete(law: Distribution) -> bool:
    """Whether targets are whole numbers or classes."""
    return law.support is not None and bool(law.support.is_discrete)


def has_mean(law: Distribution) -> bool:
    """Whether targets are numbers that have a mean; torch gives NaN for those without."""
    try:
        return not bool(law.mean.isnan().all())
    except NotImplementedError:
        return False


def has_classes(law: Distribution) -> bool:
    """Whether targets are one of several names, on or off included, and not numbers."""
    return is_binary(law) or (is_finite(law) and not has_mean(law))


def answers(law: Distribution) -> tuple[str, ...]:
    """What a prediction with this distribution can be asked for."""
    return (
        *(_OF_CLASSES if is_finite(law) else ()),
        *(_OF_MOMENTS if has_mean(law) else ()),
        *(_OF_CDF if cdf(law) is not None else ()),
        "log_likelihood",
    )


def parameters(law: Distribution) -> dict[str, Tensor]:
    """The tensors that a distribution is made of, with probabilities in the place of logits."""
    given = [name for name in law.arg_constraints if name in vars(law)]
    names = ["probs" if name == "logits" else name for name in given]
    return {name: getattr(law, name) for name in names}


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
    return _summed_cdf(law) if is_finite(law) and has_mean(law) else None


def _summed_cdf(law: Distribution) -> Callable[[Tensor], Tensor]:
    values, probs = law.enumerate_support(expand=False), value_log_probs(law).exp()

    def summed(y: Tensor) -> Tensor:
        reached = zip(values, probs.unbind(-1), strict=True)
        return torch.stack([p * (value <= y) for value, p in reached]).sum(0)

    return summed


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
