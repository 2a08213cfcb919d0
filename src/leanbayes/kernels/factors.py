"""Random factors of inputs or outputs: ``x ∘ clip(loc + scale ∘ ε)``, with an ε for every row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leanbayes.kernels.fused import Fused, fusible, in_full_precision, twice_differentiable
from leanbayes.kernels.native import library, loaded, normals, pointer, seed, threads
from leanbayes.precision import is_rounded

__all__ = ["NormalFactor"]


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
        return _Times.apply(x, self.loc, self.scale, self.clip, self.noise)

    def fits(self, x: Tensor) -> bool:
        """Whether :meth:`times` can take ``x``."""
        expected = (self.batch, self.loc.shape[1])
        same = x.shape == expected and x.dtype == self.loc.dtype
        return same and not is_rounded(x) and fusible(x)


def _factors(loc: Tensor, scale: Tensor, e: Tensor, clip: float) -> Tensor:
    f = torch.addcmul(loc.unsqueeze(1), scale.unsqueeze(1), _blocks(e, loc)).flatten(0, 1)
    return f if math.isinf(clip) else f.clamp(-clip, clip)


def _blocks(rows: Tensor, loc: Tensor) -> Tensor:
    """Rows ``[members, each, n]``."""
    members, n = loc.shape
    return rows.reshape(members, len(rows) // members, n)


class _Times(Fused):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, loc: Tensor, scale: Tensor, clip: float, noise: Tensor | int
    ) -> Tensor:
        ctx.clip, ctx.noise = clip, noise
        ctx.save_for_backward(x, loc, scale)
        if isinstance(noise, Tensor):
            return x * _factors(loc, scale, noise, clip)
        dense = x.contiguous()
        y = torch.empty_like(dense)
        tensors = map(pointer, (dense, loc, scale, y))
        loaded().factor_forward(*tensors, *x.shape, len(loc), clip, noise, threads(x.numel()))
        return y

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, (x, loc, scale), clip = grads[0], ctx.saved_tensors, ctx.clip
        if torch.is_grad_enabled() or isinstance(ctx.noise, Tensor):
            e = ctx.noise if isinstance(ctx.noise, Tensor) else normals(x.shape, ctx.noise)
            if torch.is_grad_enabled():
                return twice_differentiable(
                    lambda x, m, s: x * _factors(m, s, e, clip), (x, loc, scale), ctx, g
                )
            return _slopes(ctx, g, e)
        dense = g.contiguous(), x.contiguous()
        gx = torch.empty_like(dense[1]) if ctx.needs_input_grad[0] else None
        gloc, gscale = torch.empty_like(loc), torch.empty_like(scale)
        tensors = map(pointer, (*dense, loc, scale, gx, gloc, gscale))
        loaded().factor_backward(*tensors, *x.shape, len(loc), clip, ctx.noise, threads(x.numel()))
        return gx, gloc, gscale, None, None


def _slopes(ctx: Any, g: Tensor, e: Tensor) -> tuple[Tensor | None, ...]:
    x, loc, scale = ctx.saved_tensors
    f = _factors(loc, scale, e, math.inf)
    h = g * x
    if not math.isinf(ctx.clip):
        h = h.masked_fill_(f.abs() > ctx.clip, 0.0)
        f = f.clamp_(-ctx.clip, ctx.clip)
    gloc = _blocks(h, loc).sum(1)
    gscale = _blocks(h.mul_(e), loc).sum(1)
    return g.mul(f) if ctx.needs_input_grad[0] else None, gloc, gscale, None, None
