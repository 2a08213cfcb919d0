"""What equally weighted samples say together: averages in log space, entropies, quantiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, biject_to

from leanbayes.errors import require
from leanbayes.likelihoods.laws import is_discrete

__all__ = ["entropy", "log_mean", "quantiles"]

_DOUBLINGS = 128
_HALVINGS = 128

Cdf = Callable[[Tensor], Tensor]


def log_mean(log_probs: Tensor) -> Tensor:
    """The log of probabilities averaged over the first axis.

    Example:
        >>> log_mean(torch.tensor([-1000.0, -1000.0]))
        tensor(-1000.)
    """
    return torch.logsumexp(log_probs, 0) - math.log(len(log_probs))


def entropy(log_probs: Tensor) -> Tensor:
    """The entropy over the last axis, in nats."""
    return torch.special.entr(log_probs.exp()).sum(-1)


def quantiles(cdf: Cdf, levels: Sequence[float], law: Distribution, like: Tensor) -> Tensor:
    """Where a distribution function reaches each level, ``[levels, *like.shape]``.

    Bisection, to the last bit: between the ends of a bracket that is doubled until it holds every
    level, on the real line that ``biject_to`` maps to the support. For counts, the least whole
    number whose distribution function reaches the level.

    Args:
        cdf: the distribution function of every target, for values ``[levels, *like.shape]``.
        levels: between 0 and 1.
        law: a distribution with the same support.
        like: a tensor with the shape of the targets.
    """
    for level in levels:
        require(0 < level < 1, f"quantile {level} does not lie between 0 and 1")
    target = like.new_tensor(list(levels)).reshape(-1, *(1,) * like.ndim)
    shape = (len(levels), *like.shape)
    low, high = like.new_full(shape, -1.0), like.new_full(shape, 1.0)
    if is_discrete(law):
        return _least_count(cdf, target, low, high)
    values: Cdf = biject_to(law.support)
    for _ in range(_DOUBLINGS):
        too_high, too_low = cdf(values(low)) >= target, cdf(values(high)) < target
        if not bool((too_high | too_low).any()):
            break
        low, high = torch.where(too_high, 2 * low, low), torch.where(too_low, 2 * high, high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not bool(((low < middle) & (middle < high)).any()):
            break
        below = cdf(values(middle)) < target
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return _unless_undefined(values((low + high) / 2), cdf)


def _least_count(cdf: Cdf, target: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The least whole number that reaches the level; ``low`` is always one that does not."""
    for _ in range(_DOUBLINGS):
        short = cdf(high) < target
        if not bool(short.any()):
            break
        low, high = torch.where(short, high, low), torch.where(short, 2 * high, high)
    for _ in range(_HALVINGS):
        if not bool((high - low > 1).any()):
            break
        middle = ((low + high) / 2).floor()
        below = cdf(middle) < target
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return _unless_undefined(high, cdf)


def _unless_undefined(value: Tensor, cdf: Cdf) -> Tensor:
    return torch.where(cdf(value).isnan(), torch.nan, value)
