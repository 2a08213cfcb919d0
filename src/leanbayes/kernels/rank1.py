"""Kernels of rank-one factors: ``x ∘ clip(loc + scale ∘ ε)``, with an ε for every example."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal

from leanbayes.distributions import Rank1Mixture
from leanbayes.distributions.factored import PerturbedMap, RandomFactor
from leanbayes.kernels.dispatch import (
    EAGER,
    Computation,
    Saved,
    Tensors,
    Value,
    kernel,
    library,
    loaded,
    mode_of,
    normals,
    pointer,
    product,
    run,
    seed,
    threads,
)
from leanbayes.ops import Conv, ConvTranspose, Linear, Lookup
from leanbayes.precision import is_rounded


@dataclass(frozen=True, eq=False)
class NormalFactor:
    """Normal factors of the rows of a batch; rows of a member come together.

    Args:
        loc: means ``[members, n]``.
        scale: standard deviations ``[members, n]``.
        clip: bound on the absolute value of a factor, or infinity.
        batch: number of rows.
        noise: the ε ``[batch, n]``, or a seed that gives them.
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
        """Return the factor of every row, ``[batch, n]``."""
        noise = self.noise
        e = noise if isinstance(noise, Tensor) else normals((self.batch, self.loc.shape[1]), noise)
        return _factors(self.loc, self.scale, e, self.clip)

    def times(self, x: Tensor) -> Tensor:
        """Return ``x [batch, n]`` times the factors."""
        y: Tensor = run(_Times(self.clip, self.noise), x, self.loc, self.scale)
        return y

    def fits(self, x: Tensor) -> bool:
        """Return whether :meth:`times` can take ``x``."""
        expected = (self.batch, self.loc.shape[1])
        same = x.shape == expected and x.dtype == self.loc.dtype
        return same and not is_rounded(x) and mode_of(x) == EAGER


def _factors(loc: Tensor, scale: Tensor, e: Tensor, clip: float) -> Tensor:
    f = torch.addcmul(loc.unsqueeze(1), scale.unsqueeze(1), _blocks(e, loc)).flatten(0, 1)
    return f if math.isinf(clip) else f.clamp(-clip, clip)


def _blocks(rows: Tensor, loc: Tensor) -> Tensor:
    """Return rows ``[members, each, n]``."""
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


class _Product(Computation):
    """``x weightᵀ``, whose gradients are products of the faster library too."""

    def forward(self, x: Tensor, weight: Tensor) -> Value:
        return Value(product(x, weight))

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        x, weight = call.tensors
        need_x, need_weight = call.needed
        gx = product(g, weight.t()) if need_x else None
        return gx, product(g.t(), x.t()) if need_weight else None

    def plain(self, e: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.t()


@dataclass(frozen=True, eq=False)
class ScaledMap:
    """``r ∘ op(x ∘ s, W)`` with normal factors of every row, which one kernel draws and applies."""

    op: Linear
    weight: Tensor
    r: NormalFactor | None
    s: NormalFactor | None
    members: int

    def __call__(self, x: Tensor, /) -> Tensor:
        if self.s is not None and not self.s.fits(x):
            return self.perturbed()(x)
        x = x if self.s is None else self.s.times(x)
        is_plain = x.ndim == 2 and mode_of(x, self.weight) == EAGER and not is_rounded(x)
        y = run(_Product(), x, self.weight) if is_plain else self.op(x, self.weight)
        if self.r is None:
            return y
        return self.r.times(y) if self.r.fits(y) else self.perturbed()(x)

    def perturbed(self) -> PerturbedMap:
        """Return the same map for inputs of any shape and dtype."""
        r, s = (None if factor is None else factor.rows() for factor in (self.r, self.s))
        return PerturbedMap(self.op, self.weight, r, s, self.members, add=False)


class _Scale(Computation):
    """Channels ``x [batch, channels, …]`` times factors ``[batch, channels]``."""

    def forward(self, x: Tensor, factor: Tensor) -> Value:
        return Value(_scaled(x.contiguous(), factor))

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        dense = g.contiguous(), *(t.contiguous() for t in call.tensors)
        gx = torch.empty_like(dense[1]) if call.needed[0] else None
        gfactor = torch.empty_like(dense[2])
        sizes = gfactor.numel(), g.numel() // gfactor.numel(), threads(g.numel())
        loaded().scale_rows_backward(*map(pointer, (*dense, gx, gfactor)), *sizes)
        return gx, gfactor

    def plain(self, e: Any, x: Tensor, factor: Tensor) -> Tensor:
        return x * factor[(...,) + (None,) * (x.ndim - 2)]


def _scaled(x: Tensor, factor: Tensor) -> Tensor:
    y = torch.empty_like(x)
    _scale_rows(x, factor.contiguous(), y)
    return y


def _scale_rows(x: Tensor, factor: Tensor, y: Tensor) -> None:
    rows = factor.numel()
    sizes = rows, x.numel() // rows, threads(x.numel())
    loaded().scale_rows(*map(pointer, (x, factor, y)), *sizes)


_IN_CACHE = 2**18
"""Numbers of an input that are convolved at once where no gradient needs the scaled ones."""


@dataclass(frozen=True, eq=False)
class ChannelsMap(PerturbedMap):
    """A convolution of scaled channels, whose outputs are scaled where they are."""

    def __call__(self, x: Tensor, /) -> Tensor:
        batch = x.shape[0]
        factors = [None if f is None else f.detach() for f in (self.r, self.s)]
        fits = all(f is None or len(f) == batch for f in factors) and x.numel() > 0
        fits = fits and mode_of(x) == EAGER and not is_rounded(x)
        if not fits or library(x, *factors) is None:
            return super().__call__(x)
        if not torch.is_grad_enabled():
            return self._in_parts(x)
        scaled: Tensor = x if self.s is None else run(_Scale(), x, self.s)
        y = self.op(scaled, self.weight)
        drawn: Tensor = y if self.r is None else run(_Scale(), y, self.r)
        return drawn

    def _in_parts(self, x: Tensor) -> Tensor:
        """Return outputs of a few examples at a time, which stay in caches between the products."""
        batch = len(x)
        each = max(_IN_CACHE * batch // x.numel(), 1) if self.r is not None else batch
        found: Tensor | None = None
        for rows in (slice(start, start + each) for start in range(0, batch, each)):
            part = x[rows] if self.s is None else _scaled(x[rows], self.s[rows])
            y = self.op(part, self.weight).contiguous()
            if self.r is None:
                return y
            if found is None:
                found = y if each >= batch else y.new_empty(batch, *y.shape[1:])
            _scale_rows(y, self.r[rows].contiguous(), found[rows])
        assert found is not None
        return found


_ODD = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
"""The constants of splitmix64, as signed numbers."""


def _mixed(z: Tensor) -> Tensor:
    """Bits of 64-bit numbers as splitmix64 mixes them; products wrap around."""
    for shift, factor in ((30, _ODD[1]), (27, _ODD[2])):
        z = (z ^ (z >> shift & (1 << 64 - shift) - 1)) * factor
    return z ^ (z >> 31 & (1 << 33) - 1)


def hashed_normals(by: int, example: Tensor, entry: Tensor, like: Tensor) -> Tensor:
    """Standard normals that are a function of a seed, an example and an entry.

    Args:
        by: seed.
        example: numbers of examples.
        entry: numbers of entries; broadcasts with them.
        like: source of the dtype.
    """
    bits = _mixed(_mixed(example * _ODD[0] + by) + entry * _ODD[0])
    first, second = ((bits >> shift & 0x7FFFFFFF).to(like.dtype) for shift in (0, 32))
    radius = first.add_(0.5).mul_(2.0**-31).log_().mul_(-2.0).clamp_min_(0.0).sqrt_()
    return second.mul_(2 * math.pi * 2.0**-31).cos_().mul_(radius)


@dataclass(frozen=True, eq=False)
class TableMap:
    """Entries of a table times factors, drawn for those that every example looks up.

    Args:
        op: the look-up.
        weight: the table ``[dimension, entries]``.
        r: factors of the dimensions.
        s: law of the factors of entries, by member.
        clip: bound on the absolute value of a factor.
        seed: seed of the factors of entries.
    """

    op: Lookup
    weight: Tensor
    r: NormalFactor | None
    s: Normal | None
    clip: float
    members: int
    seed: int

    def __call__(self, x: Tensor, /) -> Tensor:
        y = self.op(x, self.weight)
        if self.s is not None:
            y = y * self.of_entries(self.s, x).unsqueeze(-1)
        return y if self.r is None else y * self.op.spread(self.r.rows(), y.ndim)

    def of_entries(self, s: Normal, x: Tensor) -> Tensor:
        """Return the factor of every entry of an input, ``[batch, …]``."""
        batch, dim = x.shape[self.op.batch_dim], self.op.batch_dim
        sizes = [batch if axis == dim else 1 for axis in range(x.ndim)]
        example = torch.arange(batch, device=x.device).view(sizes)
        place = x + (example // (batch // self.members)) * s.loc.shape[1]
        e = hashed_normals(self.seed, example, x, s.loc)
        loc, scale = (F.embedding(place, t.reshape(-1, 1)).squeeze(-1) for t in (s.loc, s.scale))
        return torch.addcmul(loc, scale, e).clamp(-self.clip, self.clip)


def _is_eager_normal(factor: RandomFactor) -> bool:
    return type(factor) is Normal and mode_of(factor.loc, factor.scale) == EAGER


def _fits(q: Rank1Mixture, batch: int) -> bool:
    fits = q.perturb == "multiply" and batch % q.members == 0
    return fits and all(map(_is_eager_normal, q.factors))


def _drawn(q: Rank1Mixture, factor: RandomFactor | None, batch: int) -> NormalFactor | None:
    if not isinstance(factor, Normal):
        return None
    return NormalFactor.draw(factor.loc, factor.scale, q.clip, batch)


@kernel("local", Rank1Mixture, Linear)
def _local(q: Rank1Mixture, op: Linear, batch: int) -> ScaledMap | None:
    """A map of a batch: rank-one factors are drawn once for every example."""
    if not _fits(q, batch):
        return None
    return ScaledMap(op, q.weight, _drawn(q, q.r, batch), _drawn(q, q.s, batch), q.members)


@kernel("local", Rank1Mixture, Conv)
@kernel("local", Rank1Mixture, ConvTranspose)
def _convolved(q: Rank1Mixture, op: Conv | ConvTranspose, batch: int) -> ChannelsMap | None:
    if not _fits(q, batch) or library(q.weight.detach()) is None:
        return None
    drawn = (_drawn(q, factor, batch) for factor in (q.r, q.s))
    r, s = (None if factor is None else factor.rows() for factor in drawn)
    return ChannelsMap(op, q.weight, r, s, q.members, add=False)


@kernel("local", Rank1Mixture, Lookup)
def _looked_up(q: Rank1Mixture, op: Lookup, batch: int) -> TableMap | None:
    if not _fits(q, batch):
        return None
    clip, s = math.inf if q.clip is None else q.clip, q.s if isinstance(q.s, Normal) else None
    return TableMap(op, q.weight, _drawn(q, q.r, batch), s, clip, q.members, seed())
