"""Folding: all samples of a prediction in one pass, with noise that examples share.

A prediction needs the law of each example's own outputs and nothing of how two examples vary
together. So a number of noise may serve several examples, and the moments of the first random
layer, which no noise has reached, are computed once for all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from leanbayes.kernels import Folded, windows
from leanbayes.ops import LinearOp
from leanbayes.prediction.vectorized.batch_independence import RowsApart
from leanbayes.torch_private import outside_vmap

__all__ = ["ApartMap", "Fold", "current_fold", "folding", "repeated", "shared_draws"]

SHARED_BY = 10
"""How many examples use one number of noise."""


class _Rows(Protocol):
    width: int

    def color(self, e: Tensor) -> Tensor: ...


class _Weights(Protocol):
    """What a :class:`~leanbayes.distributions.WeightDistribution` is."""

    def moments(self, x: Tensor, op: LinearOp) -> _Law: ...
    def folded_draws(
        self, x: Tensor, op: LinearOp, bias: Tensor | None, fold: Folded
    ) -> Tensor | None: ...


class _Law(Protocol):
    """What :class:`~leanbayes.distributions.Moments` are."""

    @property
    def mean(self) -> Tensor: ...
    @property
    def variance(self) -> Tensor | None: ...
    @property
    def common(self) -> Tensor | None: ...
    @property
    def rows(self) -> _Rows | None: ...


def shared_draws(examples: int) -> int:
    """How many draws serve so many examples, each about ten of them."""
    return -(-examples // SHARED_BY)


def repeated(draws: Tensor, examples: int) -> Tensor:
    """Draws in dimension 1, each for the examples that share it.

    Example:
        >>> repeated(torch.tensor([[1, 2]]), 13)
        tensor([[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2]])
    """
    return draws.repeat_interleave(SHARED_BY, 1)[:, :examples]


class Fold:
    """The samples that one pass runs at once, as the vmapped axis of every tensor behind noise.

    Args:
        index: the number of the sample, which the vmap runs over.
        apart: follows the rows of the pass.
    """

    def __init__(self, index: Tensor, apart: RowsApart) -> None:
        self.index = index
        self.apart = apart

    def draw(self, q: _Weights, op: LinearOp, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Outputs ``op(x, W) + bias`` of every sample, by the law of each of them.

        Args:
            q: the distribution of ``W``.
            op: how the matrix acts on an input.
            x: the input.
            bias: a vector ``[out]``, or ``None``.
        """
        self.apart.expect(x, op.batch_dim)
        with self.apart.paused():
            outputs = partial(_outputs, q, op, bias)
            y = outside_vmap(x, outputs)
        return self.apart.follow(y, op.batch_dim)

    def shared(self, draw: Callable[[tuple[int, int]], Tensor], examples: int) -> Tensor:
        """Draws ``[examples, …]`` of every sample, each shared by about ten examples."""

        def draws(samples: int, place: int | None, index: Tensor) -> tuple[Tensor, int]:
            return repeated(draw((samples, shared_draws(examples))), examples), 0

        return outside_vmap(self.index, draws)


@dataclass(frozen=True, eq=False)
class ApartMap:
    """A map with noise of its own for every row, as a pass that follows rows sees it."""

    drawn: Callable[[Tensor], Tensor]
    batch_dim: int
    apart: RowsApart

    def __call__(self, x: Tensor, /) -> Tensor:
        self.apart.expect(x, self.batch_dim)
        with self.apart.paused():
            y = self.drawn(x)
        return self.apart.follow(y, self.batch_dim)


_FOLD: ContextVar[Fold | None] = ContextVar("leanbayes.fold", default=None)


def current_fold() -> Fold | None:
    """The fold that this code runs in."""
    return None if torch.compiler.is_compiling() else _FOLD.get()


@contextmanager
def folding(fold: Fold) -> Iterator[None]:
    """Let random maps draw all samples at once for the length of a block."""
    before = _FOLD.get()
    _FOLD.set(fold)
    try:
        yield
    finally:
        _FOLD.set(before)


def _outputs(
    q: _Weights, op: LinearOp, bias: Tensor | None, samples: int, place: int | None, x: Tensor
) -> tuple[Tensor, int]:
    """One draw for each sample: samples become rows where the input differs between them."""
    dim = op.batch_dim
    x = x.unsqueeze(dim) if place is None else x.movedim(place, dim)
    given, rows = (x.shape[dim], x.shape[dim + 1]), x.flatten(dim, dim + 1)
    drawn = (
        q.folded_draws(rows, op, bias, Folded(samples, given[1], SHARED_BY)) if dim == 0 else None
    )
    if drawn is not None:
        return op.silence(x, drawn.unflatten(0, (samples, given[1]))), 0
    moments = q.moments(rows, op)
    y = op.silence(x, _spread(moments, op, samples, given))
    if bias is None:
        return y, dim
    bias = op.spread(bias.unsqueeze(0), y.ndim - 1).unsqueeze(dim)
    is_noisy = moments.variance is not None or moments.common is not None
    return y.add_(bias) if is_noisy else y + bias, dim


def _spread(law: _Law, op: LinearOp, samples: int, given: tuple[int, int]) -> Tensor:
    """Noise added to a law that is known for all samples, or for one, of all examples."""
    dim = op.batch_dim
    y = law.mean.unflatten(dim, given) if law.mean.ndim else law.mean
    if law.variance is not None:
        std = _root(law.variance).unflatten(dim, given)
        sizes = std.shape[:dim] + std.shape[dim + 2 :]
        fold = Folded(samples, given[1], SHARED_BY)
        e = windows(fold, sizes.numel(), std).unflatten(-1, sizes)
        e = e.movedim((0, 1), (dim, dim + 1))
        is_room = given[0] == samples and y.shape in ((), std.shape)
        y = torch.addcmul(y, std, e, out=std) if is_room else torch.addcmul(y, std, e)
    if law.common is not None and law.rows is not None:
        std = _root(law.common).movedim(op.channel_dim, -1).unflatten(dim, given)
        noise = std * _colored(std, law.rows, dim, samples)
        y = y + noise.movedim(-1, op.channel_dim + (op.channel_dim >= 0))
    return y


def _root(variance: Tensor) -> Tensor:
    """The square root, in memory of its own."""
    return variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt_()


def _colored(std: Tensor, rows: _Rows, dim: int, samples: int) -> Tensor:
    """Correlated noise that groups of examples share up to a random sign of each of them."""
    examples = std.shape[dim + 1]
    positions = std.shape[:dim] + std.shape[dim + 2 : -1]
    white = std.new_empty(samples, shared_draws(examples), *positions, rows.width).normal_()
    shared = repeated(rows.color(white), examples)
    signs = torch.randint(2, (samples, examples), device=std.device).to(std.dtype) * 2 - 1
    signs = signs.reshape(samples, examples, *(1,) * (shared.ndim - 2))
    return (shared * signs).movedim((0, 1), (dim, dim + 1))
