"""Kernel of one-pass moments: a ReLU."""

import torch
from torch import Tensor

from leanbayes.kernels.dispatch import EAGER, mode_of
from leanbayes.kernels.native import library, pointer, threads


def relu_moments(loc: Tensor, variance: Tensor, slope: float = 0.0) -> tuple[Tensor, Tensor] | None:
    """Return mean and variance of a (leaky) ReLU in one pass over memory.

    Args:
        loc: Means of normal inputs.
        variance: Their variances.
        slope: Slope below zero.

    Returns:
        Both moments, or ``None`` where the formula has to compute them.
    """
    if torch.is_grad_enabled() or mode_of(loc, variance) != EAGER or loc.shape != variance.shape:
        return None
    given = loc.contiguous(), variance.contiguous()
    native = library(*given)
    if native is None:
        return None
    made, count = (torch.empty_like(given[0]), torch.empty_like(given[0])), loc.numel()
    native.relu_moments(*map(pointer, (*given, *made)), count, slope, threads(count))
    return made
