"""Lower-triangular matrices that are stored packed: unpacked, squared and multiplied by."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from leanbayes.distributions import Triangular
from leanbayes.kernels.dispatch import (
    EAGER,
    Computation,
    Saved,
    Tensors,
    Value,
    library,
    mode_of,
    pointer,
    run,
)
from leanbayes.ops import Linear, LinearOp

_BLOCK = 160
"""Blocks of about this many rows: fewer products of zeros, but products that are still large."""


class PackedTriangular(Triangular):
    """A triangular factor from its diagonal and what is below it, row by row.

    It is written out where it is needed.
    """

    def __init__(self, diagonal: Tensor, below: Tensor) -> None:
        n = diagonal.numel()
        if diagonal.ndim != 1 or tuple(below.shape) != (n * (n - 1) // 2,):
            raise ValueError(
                f"a diagonal of shape {tuple(diagonal.shape)} and {tuple(below.shape)} numbers "
                f"below it make no triangle; give n and n (n - 1) / 2 numbers"
            )
        self.diagonal = diagonal
        self.below = below
        self._written_out: Tensor | None = None
        self.size = self.width = diagonal.shape[0]

    @property
    def lower(self) -> Tensor:  # type: ignore[override]
        """The factor as a matrix."""
        if self._written_out is None:
            self._written_out = from_packed(self.diagonal, self.below)
        return self._written_out

    def color(self, e: Tensor) -> Tensor:
        return lower_product(e, self.lower)

    @property
    def variance(self) -> Tensor:
        return row_squares(self.diagonal, self.below)

    @property
    def log_pivots(self) -> Tensor:
        return 2 * self.diagonal.abs().log()

    def quadratic(self, x: Tensor, op: LinearOp) -> Tensor:
        if type(op) is Linear:
            return lower_quadratic(x, self.lower)
        return super().quadratic(x, op)


def from_packed(diagonal: Tensor, below: Tensor) -> Tensor:
    """Return the lower-triangular matrix of a diagonal ``[n]`` and what is below it, row by row."""
    if _is_native(diagonal, below):
        return run(_FromPacked(), diagonal, below)
    return _plain_from_packed(diagonal, below)


def to_packed(lower: Tensor) -> tuple[Tensor, Tensor]:
    """Return the diagonal of a matrix and what is below it, row by row."""
    n = lower.shape[0]
    square = lower.shape == (n, n) and mode_of(lower) == EAGER
    native = library(lower) if square and not torch.is_grad_enabled() else None
    if native is None:
        return lower.diagonal(), lower.reshape(-1)[_places(lower, n)]
    diagonal, below = lower.new_empty(n), lower.new_empty(n * (n - 1) // 2)
    native.pack_lower(*map(pointer, (lower, diagonal, below)), n)
    return diagonal, below


def row_squares(diagonal: Tensor, below: Tensor) -> Tensor:
    """Return the sum of squares of every row of that matrix."""
    if _is_native(diagonal, below):
        return run(_RowSquares(), diagonal, below)
    return _plain_row_squares(diagonal, below)


def lower_product(x: Tensor, lower: Tensor) -> Tensor:
    """Return ``x Lᵀ`` for ``x [..., n]`` and lower-triangular ``L``, without most of its zeros."""
    if not _worthrow_blocks(x, lower):
        return x @ lower.mT
    flat = x.reshape(-1, x.shape[-1])
    y: Tensor = run(_Product(), flat, lower)
    return y.view(x.shape)


def lower_quadratic(x: Tensor, lower: Tensor) -> Tensor:
    """Return ``xᵀ L Lᵀ x`` for every ``x [..., n]``, as ``[..., 1]``."""
    if not _worthrow_blocks(x, lower):
        return (x @ lower).square().sum(-1, keepdim=True)
    flat = x.reshape(-1, x.shape[-1])
    q: Tensor = run(_Quadratic(), flat, lower)
    return q.view(*x.shape[:-1], 1)


def _is_native(diagonal: Tensor, below: Tensor) -> bool:
    """Whether kernels can read both; what does not fit together is left to torch to refuse."""
    n = len(diagonal)
    fits = diagonal.ndim == below.ndim == 1 and len(below) == n * (n - 1) // 2
    eager = fits and mode_of(diagonal, below) == EAGER
    return eager and library(diagonal, below) is not None


def _worthrow_blocks(x: Tensor, lower: Tensor) -> bool:
    large = len(lower) >= 2 * _BLOCK and x.numel() >= 16 * len(lower)
    return large and x.dtype == lower.dtype and mode_of(x, lower) == EAGER


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


class _FromPacked(Computation):
    def forward(self, diagonal: Tensor, below: Tensor) -> Value:
        n = diagonal.shape[0]
        lower = diagonal.new_empty(n, n)
        library(diagonal, below).unpack_lower(*map(pointer, (diagonal, below, lower)), n)
        return Value(lower)

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        return to_packed(g)

    def plain(self, e: None, diagonal: Tensor, below: Tensor) -> Tensor:
        return _plain_from_packed(diagonal, below)


class _RowSquares(Computation):
    def forward(self, diagonal: Tensor, below: Tensor) -> Value:
        squares, n = torch.empty_like(diagonal), diagonal.shape[0]
        library(diagonal, below).row_squares(*map(pointer, (diagonal, below, squares)), n)
        return Value(squares)

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        diagonal, below = call.tensors
        dense = g.contiguous(), diagonal, below
        native = library(*dense)
        if native is None:
            rows = g.repeat_interleave(torch.arange(len(g), device=g.device))
            return 2 * g * diagonal, 2 * rows * below
        slopes = torch.empty_like(diagonal), torch.empty_like(below)
        native.row_squares_backward(*map(pointer, (*dense, *slopes)), len(g))
        return slopes

    def plain(self, e: None, diagonal: Tensor, below: Tensor) -> Tensor:
        return _plain_row_squares(diagonal, below)


def row_blocks(n: int) -> Iterator[tuple[int, int]]:
    """Return where blocks of the rows of a triangle begin and end."""
    count = max(1, n // _BLOCK)
    ends = [n * i // count for i in range(count + 1)]
    return pairwise(ends)


def _times(x: Tensor, lower: Tensor) -> Tensor:
    """Return ``x L``."""
    y = torch.empty_like(x)
    for a, b in row_blocks(len(lower)):
        torch.mm(x[:, a:], lower[a:, a:b], out=y[:, a:b])
    return y


def _times_transposed(x: Tensor, lower: Tensor) -> Tensor:
    """Return ``x Lᵀ``."""
    y = torch.empty_like(x)
    for a, b in row_blocks(len(lower)):
        torch.mm(x[:, :b], lower[a:b, :b].t(), out=y[:, a:b])
    return y


def _slope(left: Tensor, right: Tensor, like: Tensor) -> Tensor:
    """The lower blocks of ``leftᵀ right``: what is above them belongs to zeros of the factor."""
    slope = torch.zeros_like(like)
    for a, b in row_blocks(len(like)):
        torch.mm(left[:, a:].t(), right[:, a:b], out=slope[a:, a:b])
    return slope


class _Product(Computation):
    def forward(self, x: Tensor, lower: Tensor) -> Value:
        return Value(_times_transposed(x, lower))

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        (x, lower), (need_x, need_lower) = call.tensors, call.needed
        gx = _times(g.contiguous(), lower) if need_x else None
        return gx, _slope(g, x, lower) if need_lower else None

    def plain(self, e: None, x: Tensor, lower: Tensor) -> Tensor:
        return x @ lower.mT


class _Quadratic(Computation):
    def forward(self, x: Tensor, lower: Tensor) -> Value:
        projected = _times(x, lower)
        return Value(torch.linalg.vecdot(projected, projected), None, (projected,))

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        (x, lower), (need_x, need_lower) = call.tensors, call.needed
        slope = call.kept[0] * (2 * g).unsqueeze(-1)
        gx = _times_transposed(slope, lower) if need_x else None
        return gx, _slope(x, slope, lower) if need_lower else None

    def plain(self, e: None, x: Tensor, lower: Tensor) -> Tensor:
        return (x @ lower).square().sum(-1)
