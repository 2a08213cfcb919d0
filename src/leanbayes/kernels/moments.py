"""Kernels of one-pass moments: variances of k-tied weights, a ReLU, a sigmoid and a maximum."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leanbayes.distributions import KTiedNormal
from leanbayes.distributions.gauss_hermite import quadrature
from leanbayes.kernels.dispatch import EAGER, mode_of
from leanbayes.kernels.native import LARGEST_RANK, library, pointer, threads
from leanbayes.ops import Conv, Linear, LinearOp


def add_k_tied_variance(
    out: Tensor, q: KTiedNormal, op: LinearOp, x: Tensor, variance: Tensor | None = None
) -> bool:
    """Add the variances that k-tied weights give to outputs of uncertain inputs.

    Args:
        out: Contiguous memory to add to.
        q: The weights.
        op: Action of the weights: a dense layer, or a convolution over one or two dimensions.
        x: Means of inputs.
        variance: Variances of inputs; ``None`` for zero.

    Returns:
        Whether it was done: the formula has to, where there is no kernel.
    """
    given = [None if t is None else t.contiguous() for t in (x, variance, q.u, q.v)]
    native = library(*given, out) if q.rank <= LARGEST_RANK else None
    if native is None or torch.is_grad_enabled() or mode_of(out, *given) != EAGER:
        return False
    pointers, last = map(pointer, (*given, out)), (q.rank, threads(x.numel()))
    if type(op) is Linear:
        rows = x.shape[:-1].numel()
        native.k_tied_variance(*pointers, rows, x.shape[-1], out.shape[-1], *last)
        return True
    if type(op) is not Conv or op.groups > 1 or op.padding_mode != "zeros":
        return False
    if op.dims > 2 or not op.is_batched(x):
        return False
    pads = op.pad_widths()[-2::-2]
    window = _window(x, out, op.kernel_size, op.stride, pads, op.dilation)
    native.k_tied_convolution(*pointers, window, len(x), out.shape[1], *last)
    return True


def _window(x: Tensor, out: Tensor, *by_dim: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Return sizes of images, then kernel, stride, padding and dilation, as ``struct Window``."""
    dims = len(by_dim[0])
    images = x.shape[-dims - 1], *_of_two(x.shape[-dims:]), *_of_two(out.shape[-dims:])
    numbers = *images, *(n for sizes in by_dim for n in _of_two(sizes, int(sizes is not by_dim[2])))
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _of_two(sizes: Sequence[int], missing: int = 1) -> tuple[int, ...]:
    return (missing, *sizes)[-2:]


def max_pool_moments(
    loc: Tensor, variance: Tensor, shape: Sequence[int], *by_dim: Sequence[int]
) -> tuple[Tensor, Tensor] | None:
    """Return the largest mean of every window, and its variance.

    Args:
        loc: Means ``[images, channels, …]``.
        variance: Their variances.
        shape: Shape of the result.
        *by_dim: Kernel, stride, padding and dilation by dimension, of which there are one or two.

    Returns:
        Both, or ``None`` where the formula has to compute them.
    """
    given = _given(loc, variance, shape) if len(by_dim[0]) < 3 else None
    if given is None:
        return None
    native, *tensors = given
    window = _window(loc, tensors[2], *by_dim)
    images = loc.shape[: -len(by_dim[0]) - 1].numel()
    native.max_pool_moments(*map(pointer, tensors), window, images, threads(loc.numel()))
    return tensors[2], tensors[3]


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


def _given(
    loc: Tensor, variance: Tensor, shape: Sequence[int] | None = None
) -> tuple[Any, Tensor, Tensor, Tensor, Tensor] | None:
    """Return the library, both inputs in order of memory, and memory for both outputs."""
    if torch.is_grad_enabled() or mode_of(loc, variance) != EAGER or loc.shape != variance.shape:
        return None
    loc, variance = loc.contiguous(), variance.contiguous()
    native = library(loc, variance)
    if native is None:
        return None
    shape = loc.shape if shape is None else shape
    return native, loc, variance, loc.new_empty(shape), loc.new_empty(shape)
