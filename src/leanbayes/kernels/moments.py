"""Kernels of one-pass moments: variances of k-tied weights, a ReLU, a sigmoid and a maximum."""

import ctypes
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from leanbayes.distributions import KTiedNormal
from leanbayes.distributions.gauss_hermite import quadrature
from leanbayes.kernels.dispatch import EAGER, library, mode_of, pointer, threads
from leanbayes.kernels.native import LARGEST_RANK
from leanbayes.ops import Conv, Linear, LinearOp


def add_k_tied_variance(
    out: Tensor, q: KTiedNormal, op: LinearOp, x: Tensor, variance: Tensor | None = None
) -> bool:
    """Add the variances that k-tied weights give to contiguous outputs of uncertain inputs.

    There are kernels for dense layers and for convolutions over one or two dimensions. Where there
    is none, nothing is added and the result is ``False``.
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
    dims, missing = len(by_dim[0]), (1, 1, 1, 1, 0, 1)  # a vector is an image of one row
    sizes = zip(missing, (x.shape[-dims:], out.shape[-dims:], *by_dim), strict=True)
    numbers = [x.shape[-dims - 1], *chain.from_iterable((one, *given)[-2:] for one, given in sizes)]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def max_pool_moments(
    loc: Tensor, variance: Tensor, *by_dim: Sequence[int]
) -> tuple[Tensor, Tensor] | None:
    """Return the largest mean of every window and its variance; ``None`` without a kernel.

    Windows have a kernel, stride, padding and dilation by dimension, of which there are one or two.
    """
    dims = len(by_dim[0])
    after = [
        (n + 2 * pad - gap * (size - 1) - 1) // step + 1
        for n, size, step, pad, gap in zip(loc.shape[-dims:], *by_dim, strict=True)
    ]
    given = _given(loc, variance, (*loc.shape[:-dims], *after)) if dims < 3 else None
    if given is None:
        return None
    native, *tensors = given
    window = _window(loc, tensors[2], *by_dim)
    images = loc.shape[: -dims - 1].numel()
    native.max_pool_moments(*map(pointer, tensors), window, images, threads(loc.numel()))
    return tensors[2], tensors[3]


def relu_moments(loc: Tensor, variance: Tensor, slope: float = 0.0) -> tuple[Tensor, Tensor] | None:
    """Return mean and variance of a (leaky) ReLU; ``None`` where the formula has to."""
    given = _given(loc, variance)
    if given is None:
        return None
    native, *tensors = given
    native.relu_moments(*map(pointer, tensors), loc.numel(), slope, threads(loc.numel()))
    return tensors[2], tensors[3]


def sigmoid_moments(loc: Tensor, variance: Tensor, points: int) -> tuple[Tensor, Tensor] | None:
    """Return mean and variance of a sigmoid by quadrature; ``None`` where the formula has to."""
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
