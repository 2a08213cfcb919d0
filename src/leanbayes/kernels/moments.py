"""Kernels of one-pass moments: variances of k-tied weights, a ReLU and a sigmoid."""

from typing import Any

import torch
from torch import Tensor

from leanbayes.distributions import KTiedNormal
from leanbayes.distributions.gauss_hermite import quadrature
from leanbayes.kernels.dispatch import EAGER, mode_of
from leanbayes.kernels.native import LARGEST_RANK, library, pointer, threads


def add_k_tied_variance(
    out: Tensor, q: KTiedNormal, x: Tensor, variance: Tensor | None = None
) -> bool:
    """Add the variances that k-tied weights give to outputs ``[rows, out]`` of uncertain inputs.

    Args:
        out: Contiguous memory to add to.
        q: The weights.
        x: Means of inputs ``[rows, in]``.
        variance: Variances of inputs; ``None`` for zero.

    Returns:
        Whether it was done: the formula has to, where there is no kernel.
    """
    given = [None if t is None else t.contiguous() for t in (x, variance, q.u, q.v)]
    native = library(*given, out) if q.rank <= LARGEST_RANK else None
    if native is None or torch.is_grad_enabled() or mode_of(out, *given) != EAGER:
        return False
    sizes = *x.shape, out.shape[1], q.rank, threads(x.numel())
    native.k_tied_variance(*map(pointer, (*given, out)), *sizes)
    return True


def relu_moments(loc: Tensor, variance: Tensor, slope: float = 0.0) -> tuple[Tensor, Tensor] | None:
    """Return mean and variance of a (leaky) ReLU in one pass over memory.

    Args:
        loc: Means of normal inputs.
        variance: Their variances.
        slope: Slope below zero.

    Returns:
        Both moments, or ``None`` where the formula has to compute them.
    """
    given = _given(loc, variance)
    if given is None:
        return None
    native, *tensors = given
    native.relu_moments(*map(pointer, tensors), loc.numel(), slope, threads(loc.numel()))
    return tensors[2], tensors[3]


def sigmoid_moments(loc: Tensor, variance: Tensor, points: int) -> tuple[Tensor, Tensor] | None:
    """Return mean and variance of a sigmoid by quadrature in one pass over memory.

    Args:
        loc: Means of normal inputs.
        variance: Their variances.
        points: Number of nodes.

    Returns:
        Both moments, or ``None`` where the formula has to compute them.
    """
    given = _given(loc, variance)
    if given is None:
        return None
    native, *tensors = given
    nodes, weights = torch.tensor(quadrature(points)).t().contiguous()
    rule = pointer(nodes), pointer(weights), points
    native.sigmoid_moments(*map(pointer, tensors), loc.numel(), *rule, threads(loc.numel()))
    return tensors[2], tensors[3]


def _given(loc: Tensor, variance: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, Tensor] | None:
    """Return the library, both inputs in order of memory, and memory for both outputs."""
    if torch.is_grad_enabled() or mode_of(loc, variance) != EAGER or loc.shape != variance.shape:
        return None
    loc, variance = loc.contiguous(), variance.contiguous()
    native = library(loc, variance)
    if native is None:
        return None
    return native, loc, variance, torch.empty_like(loc), torch.empty_like(loc)
