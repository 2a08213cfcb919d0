"""Kernels of rank-one factors: ``x ∘ clip(loc + scale ∘ ε)``, with an ε for every row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal

from leanbayes.distributions import Rank1Mixture
from leanbayes.distributions.rank1 import PerturbedMap, RandomFactor
from leanbayes.kernels.autograd import Computation, Saved, Tensors, Value, run
from leanbayes.kernels.dispatch import EAGER, kernel, mode_of
from leanbayes.kernels.native import library, loaded, normals, pointer, seed, threads
from leanbayes.ops import Linear
from leanbayes.precision import is_rounded


@dataclass(frozen=True, eq=False)
class NormalFactor:
    """Normal factors of the rows of a batch; rows of a member come together.

    Args:
        loc: means ``[members, n]``.
        scale: standard deviations ``[members, n]``.
        clip: bound on the absolute value of a factor, or infinity.
        batch: how many rows there are.
        noise: the ε ``[batch, n]``, or a seed that gives them.

    Example:
        >>> factor = NormalFactor.draw(torch.ones(2, 3), torch.zeros(2, 3), None, 4)
        >>> factor.times(torch.full((4, 3), 5.0)).sum()
        tensor(60.)
    """

    loc: Tensor
    scale: Tensor
    clip: float
    batch: int
    noise: Tensor | int

    @staticmethod
    def draw(loc: Tensor, scale: Tensor, clip: float | None, batch: int) -> NormalFactor:
        """Draw the noise of a batch, a multiple of the members."""
        bound = math.inf if clip is None else clip
        members, n = loc.shape
        if library(loc, scale) is not None:
            return NormalFactor(loc, scale, bound, batch, seed())
        e = torch.randn(batch // members, members, n, dtype=loc.dtype, device=loc.device)
        return NormalFactor(loc, scale, bound, batch, e.transpose(0, 1).flatten(0, 1))

    def rows(self) -> Tensor:
        """The factor of every row, ``[batch, n]``."""
        noise = self.noise
        e = noise if isinstance(noise, Tensor) else normals((self.batch, self.loc.shape[1]), noise)
        return _factors(self.loc, self.scale, e, self.clip)

    def times(self, x: Tensor) -> Tensor:
        """``x [batch, n]`` times the factors."""
        y: Tensor = run(_Times(self.clip, self.noise), x, self.loc, self.scale)
        return y

    def fits(self, x: Tensor) -> bool:
        """Whether :meth:`times` can take ``x``."""
        expected = (self.batch, self.loc.shape[1])
        same = x.shape == expected and x.dtype == self.loc.dtype
        return same and not is_rounded(x) and mode_of(x) == EAGER


def _factors(loc: Tensor, scale: Tensor, e: Tensor, clip: float) -> Tensor:
    f = torch.addcmul(loc.unsqueeze(1), scale.unsqueeze(1), _blocks(e, loc)).flatten(0, 1)
    return f if math.isinf(clip) else f.clamp(-clip, clip)


def _blocks(rows: Tensor, loc: Tensor) -> Tensor:
    """Rows ``[members, each, n]``."""
    members, n = loc.shape
    return rows.reshape(members, len(rows) // members, n)


class _Times(Computation):
    def __init__(self, clip: float, e: Tensor | int) -> None:
        self.clip, self.e = clip, e

    def forward(self, x: Tensor, loc: Tensor, scale: Tensor) -> Value:
        if isinstance(self.e, Tensor):
            return Value(self.plain(self.e, x, loc, scale))
        dense = x.contiguous()
        y, sizes = torch.empty_like(dense), (*x.shape, len(loc), self.clip, self.e)
        tensors = map(pointer, (dense, loc, scale, y))
        loaded().factor_forward(*tensors, *sizes, threads(x.numel()))
        return Value(y, self.e)

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        x, loc, scale = call.tensors
        if isinstance(self.e, Tensor):
            return self._slopes(g, self.e, call)
        dense = g.contiguous(), x.contiguous()
        gx = torch.empty_like(dense[1]) if call.needed[0] else None
        gloc, gscale = torch.empty_like(loc), torch.empty_like(scale)
        tensors = map(pointer, (*dense, loc, scale, gx, gloc, gscale))
        sizes = *x.shape, len(loc), self.clip, self.e, threads(x.numel())
        loaded().factor_backward(*tensors, *sizes)
        return gx, gloc, gscale

    def _slopes(self, g: Tensor, e: Tensor, call: Saved) -> Tensors:
        x, loc, scale = call.tensors
        f = _factors(loc, scale, e, math.inf)
        h = g * x
        if not math.isinf(self.clip):
            h = h.masked_fill_(f.abs() > self.clip, 0.0)
            f = f.clamp_(-self.clip, self.clip)
        gloc = _blocks(h, loc).sum(1)
        gscale = _blocks(h.mul_(e), loc).sum(1)
        return g.mul(f) if call.needed[0] else None, gloc, gscale

    def plain(self, e: Tensor, x: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        return x * _factors(loc, scale, e, self.clip)

    def noise(self, g: Tensor, call: Saved) -> Any:
        return self.e if isinstance(self.e, Tensor) else super().noise(g, call)


@dataclass(frozen=True, eq=False)
class _ScaledMap:
    """``r ∘ op(x ∘ s, W)`` with normal factors of every row, which one kernel draws and applies."""

    op: Linear
    weight: Tensor
    r: NormalFactor | None
    s: NormalFactor | None
    members: int

    def __call__(self, x: Tensor, /) -> Tensor:
        if self.s is not None and not self.s.fits(x):
            return self._spread(x)
        y = self.op(x if self.s is None else self.s.times(x), self.weight)
        if self.r is None:
            return y
        return self.r.times(y) if self.r.fits(y) else self._spread(x)

    def _spread(self, x: Tensor) -> Tensor:
        """The same for inputs of another shape or dtype."""
        r, s = (None if factor is None else factor.rows() for factor in (self.r, self.s))
        return PerturbedMap(self.op, self.weight, r, s, self.members, add=False)(x)


def _is_eager_normal(factor: RandomFactor) -> bool:
    return type(factor) is Normal and mode_of(factor.loc, factor.scale) == EAGER


@kernel("local", Rank1Mixture, Linear)
def _local(q: Rank1Mixture, op: Linear, batch: int) -> _ScaledMap | None:
    """A map of a batch: rank-one factors are drawn once for every example."""
    fits = q.perturb == "multiply" and batch % q.members == 0
    if not (fits and all(map(_is_eager_normal, q.factors))):
        return None

    def drawn(factor: RandomFactor | None) -> NormalFactor | None:
        if not isinstance(factor, Normal):
            return None
        return NormalFactor.draw(factor.loc, factor.scale, q.clip, batch)

    return _ScaledMap(op, q.weight, drawn(q.r), drawn(q.s), q.members)
