"""Lower-triangular matrices that are stored packed: unpacked, squared and multiplied by."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from leanbayes.kernels.fused import Fused, fusible, in_full_precision, twice_differentiable
from leanbayes.kernels.native import library, pointer

__all__ = [
    "from_packed",
    "lower_gram",
    "lower_lower",
    "lower_product",
    "lower_quadratic",
    "row_squares",
    "to_packed",
]

_BLOCK = 160
"""Blocks of about this many rows: fewer products of zeros, but products that are still large."""


def from_packed(diagonal: Tensor, below: Tensor) -> Tensor:
    """The lower-triangular matrix of a diagonal ``[n]`` and what is below it, row by row.

    Example:
        >>> from_packed(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0]))
        tensor([[1., 0., 0.],
                [4., 2., 0.],
                [5., 6., 3.]])
    """
    if _is_native(diagonal, below):
        return _FromPacked.apply(diagonal, below)
    return _plain_from_packed(diagonal, below)


def to_packed(lower: Tensor) -> tuple[Tensor, Tensor]:
    """The diagonal of a matrix and what is below it, row by row.

    Example:
        >>> to_packed(torch.tensor([[1.0, 9.0, 9.0], [4.0, 2.0, 9.0], [5.0, 6.0, 3.0]]))
        (tensor([1., 2., 3.]), tensor([4., 5., 6.]))
    """
    n = lower.shape[0]
    square = lower.shape == (n, n) and fusible(lower)
    native = library(lower) if square and not torch.is_grad_enabled() else None
    if native is None:
        return lower.diagonal(), lower.reshape(-1)[_places(lower, n)]
    diagonal, below = lower.new_empty(n), lower.new_empty(n * (n - 1) // 2)
    native.pack_lower(*map(pointer, (lower, diagonal, below)), n)
    return diagonal, below


def row_squares(diagonal: Tensor, below: Tensor) -> Tensor:
    """The sum of squares of every row of that matrix.

    Example:
        >>> row_squares(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0]))
        tensor([ 1., 20., 70.])
    """
    if _is_native(diagonal, below):
        return _RowSquares.apply(diagonal, below)
    return _plain_row_squares(diagonal, below)


def lower_product(x: Tensor, lower: Tensor) -> Tensor:
    """``x Lᵀ`` for ``x [..., n]`` and a lower-triangular ``L``, without most of its zeros.

    Example:
        >>> x, lower = torch.randn(4, 3), torch.randn(3, 3).tril()
        >>> torch.allclose(lower_product(x, lower), x @ lower.mT, atol=1e-6)
        True
    """
    if not _worth_blocks(x, lower):
        return x @ lower.mT
    flat = x.reshape(-1, x.shape[-1])
    return _Product.apply(flat, lower).view(x.shape)


def lower_quadratic(x: Tensor, lower: Tensor) -> Tensor:
    """``xᵀ L Lᵀ x`` for every ``x [..., n]``, as ``[..., 1]``.

    Example:
        >>> lower_quadratic(torch.ones(1, 2), torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
        tensor([[5.]])
    """
    if not _worth_blocks(x, lower):
        return (x @ lower).square().sum(-1, keepdim=True)
    flat = x.reshape(-1, x.shape[-1])
    q = _Quadratic.apply(flat, lower)
    return q.view(*x.shape[:-1], 1)


@torch.no_grad()
def lower_lower(a: Tensor, b: Tensor) -> Tensor:
    """``A B`` of two lower-triangular matrices, without a gradient.

    Example:
        >>> a, b = torch.randn(3, 3).tril(), torch.randn(3, 3).tril()
        >>> torch.allclose(lower_lower(a, b), a @ b, atol=1e-6)
        True
    """
    y = torch.zeros_like(a)
    for i, j in _blocks(len(a)):
        torch.mm(a[i:j, :j], b[:j, :j], out=y[i:j, :j])
    return y


@torch.no_grad()
def lower_gram(a: Tensor, b: Tensor) -> Tensor:
    """The lower triangle of ``Aᵀ B`` of two lower-triangular matrices, without a gradient.

    Example:
        >>> a, b = torch.randn(3, 3).tril(), torch.randn(3, 3).tril()
        >>> torch.allclose(lower_gram(a, b), (a.mT @ b).tril(), atol=1e-6)
        True
    """
    y = torch.zeros_like(a)
    for i, j in _blocks(len(a)):
        torch.mm(a[i:, i:j].t(), b[i:, :j], out=y[i:j, :j])
    return y.tril_()


def _is_native(diagonal: Tensor, below: Tensor) -> bool:
    """Whether kernels can read both; what does not fit together is left to torch to refuse."""
    n = len(diagonal)
    fits = diagonal.ndim == below.ndim == 1 and len(below) == n * (n - 1) // 2
    return fits and fusible(diagonal, below) and library(diagonal, below) is not None


def _worth_blocks(x: Tensor, lower: Tensor) -> bool:
    large = len(lower) >= 2 * _BLOCK and x.numel() >= 16 * len(lower)
    return large and x.dtype == lower.dtype and fusible(x, lower)


def _places(like: Tensor, n: int) -> Tensor:
    """Where the packed numbers stand in the flat matrix."""
    row, column = torch.tril_indices(n, n, -1, device=like.device)
    return row * n + column


def _plain_from_packed(diagonal: Tensor, below: Tensor) -> Tensor:
    n = diagonal.shape[0]
    where = _places(below, n)
    return torch.diag(diagonal).view(-1).index_put((where,), below).view(n, n)


def _plain_row_squares(diagonal: Tensor, below: Tensor) -> Tensor:
    return _plain_from_packed(diagonal, below).square().sum(-1)


class _FromPacked(Fused):
    @staticmethod
    def forward(ctx: Any, diagonal: Tensor, below: Tensor) -> Tensor:
        n = diagonal.shape[0]
        lower = diagonal.new_empty(n, n)
        library(diagonal, below).unpack_lower(*map(pointer, (diagonal, below, lower)), n)
        return lower

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return to_packed(grads[0])


class _RowSquares(Fused):
    @staticmethod
    def forward(ctx: Any, diagonal: Tensor, below: Tensor) -> Tensor:
        ctx.save_for_backward(diagonal, below)
        squares, n = torch.empty_like(diagonal), diagonal.shape[0]
        library(diagonal, below).row_squares(*map(pointer, (diagonal, below, squares)), n)
        return squares

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, g = ctx.saved_tensors, grads[0].contiguous()
        native = None if torch.is_grad_enabled() else library(*inputs, g)
        if native is None:
            return twice_differentiable(_plain_row_squares, inputs, ctx, g)
        slopes = [torch.empty_like(t) for t in inputs]
        native.row_squares_backward(*map(pointer, (g, *inputs, *slopes)), len(g))
        return tuple(slopes)


def _blocks(n: int) -> Iterator[tuple[int, int]]:
    count = max(1, n // _BLOCK)
    ends = [n * i // count for i in range(count + 1)]
    return pairwise(ends)


def _times(x: Tensor, lower: Tensor) -> Tensor:
    """``x L``."""
    y = torch.empty_like(x)
    for a, b in _blocks(len(lower)):
        torch.mm(x[:, a:], lower[a:, a:b], out=y[:, a:b])
    return y


def _times_transposed(x: Tensor, lower: Tensor) -> Tensor:
    """``x Lᵀ``."""
    y = torch.empty_like(x)
    for a, b in _blocks(len(lower)):
        torch.mm(x[:, :b], lower[a:b, :b].t(), out=y[:, a:b])
    return y


def _slope(left: Tensor, right: Tensor, like: Tensor) -> Tensor:
    """The lower blocks of ``leftᵀ right``: what is above them belongs to zeros of the factor."""
    slope = torch.zeros_like(like)
    for a, b in _blocks(len(like)):
        torch.mm(left[:, a:].t(), right[:, a:b], out=slope[a:, a:b])
    return slope


class _Product(Fused):
    @staticmethod
    def forward(ctx: Any, x: Tensor, lower: Tensor) -> Tensor:
        ctx.save_for_backward(x, lower)
        return _times_transposed(x, lower)

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, lower), g = ctx.saved_tensors, grads[0]
        if torch.is_grad_enabled():
            return twice_differentiable(lambda x, a: x @ a.mT, (x, lower), ctx, g)
        need_x, need_lower = ctx.needs_input_grad
        gx = _times(g.contiguous(), lower) if need_x else None
        return gx, _slope(g, x, lower) if need_lower else None


class _Quadratic(Fused):
    @staticmethod
    def forward(ctx: Any, x: Tensor, lower: Tensor) -> Tensor:
        projected = _times(x, lower)
        ctx.save_for_backward(x, lower, projected)
        return torch.linalg.vecdot(projected, projected)

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, lower, projected), g = ctx.saved_tensors, grads[0]
        if torch.is_grad_enabled():
            return twice_differentiable(lambda x, a: (x @ a).square().sum(-1), (x, lower), ctx, g)
        slope = projected * (2 * g).unsqueeze(-1)
        need_x, need_lower = ctx.needs_input_grad
        gx = _times_transposed(slope, lower) if need_x else None
        return gx, _slope(x, slope, lower) if need_lower else None
