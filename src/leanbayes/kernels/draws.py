"""Weight draws: one matrix ``loc + scale ∘ ε`` for a whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes.kernels.fused import Fused, fusible, in_full_precision, twice_differentiable
from leanbayes.kernels.native import LARGEST_RANK, library, loaded, normals, pointer, seed, threads

__all__ = ["draw_k_tied", "draw_scaled"]


def draw_scaled(loc: Tensor | None, scale: Tensor) -> Tensor:
    """``loc + scale ∘ ε`` with standard normal ``ε``; ``loc`` may be missing.

    Example:
        >>> draw_scaled(torch.ones(2, 3), torch.zeros(2, 3)).sum()
        tensor(6.)
    """
    if not fusible(loc, scale):
        e = torch.randn_like(scale)
        return scale * e if loc is None else torch.addcmul(loc, scale, e)
    return _DrawScaled.apply(loc, scale)


def draw_k_tied(loc: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """``loc + (uᵀ v) ∘ ε``.

    Example:
        >>> draw_k_tied(torch.ones(2, 3), torch.zeros(1, 2), torch.ones(1, 3)).sum()
        tensor(6.)
    """
    if not fusible(loc, u, v):
        return torch.addcmul(loc, u.t() @ v, torch.empty_like(loc).normal_())
    return _DrawKTied.apply(loc, u, v)


class _DrawScaled(Fused):
    @staticmethod
    def forward(ctx: Any, loc: Tensor | None, scale: Tensor) -> Tensor:
        native, w = library(loc, scale), torch.empty_like(scale)
        ctx.seed = None
        if native is None or w.ndim != 2:
            e = torch.randn_like(scale)
            ctx.save_for_backward(loc, scale, e)
            return scale * e if loc is None else torch.addcmul(loc, scale, e)
        ctx.seed = seed()
        native.draw_forward(*map(pointer, (loc, scale, w)), *w.shape, ctx.seed, threads(w.numel()))
        ctx.save_for_backward(loc, scale, None)
        return w

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, (_, scale, e) = grads[0], ctx.saved_tensors
        gloc = g if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return gloc, None
        if ctx.seed is None:
            return gloc, g * e
        if torch.is_grad_enabled():  # linear in the gradient, so that torch can go on from here
            return gloc, g * normals(scale.shape, ctx.seed)
        dense, gscale = g.contiguous(), torch.empty_like(scale)
        tensors = (pointer(dense), pointer(gscale))
        loaded().draw_backward(*tensors, *scale.shape, ctx.seed, threads(scale.numel()))
        return gloc, gscale


class _DrawKTied(Fused):
    @staticmethod
    def forward(ctx: Any, loc: Tensor, u: Tensor, v: Tensor) -> Tensor:
        dense = loc, u.contiguous(), v.contiguous()
        ctx.seed, rank, native = None, u.shape[0], library(*dense)
        if native is None or rank > LARGEST_RANK:
            e = torch.empty_like(loc).normal_()
            ctx.save_for_backward(loc, u, v, e)
            return torch.addcmul(loc, u.t() @ v, e)
        w, ctx.seed = torch.empty_like(loc), seed()
        tensors = map(pointer, (*dense, w))
        native.k_tied_draw_forward(*tensors, *loc.shape, rank, ctx.seed, threads(loc.numel()))
        ctx.save_for_backward(loc, u, v, None)
        return w

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, (loc, u, v, e) = grads[0], ctx.saved_tensors
        gloc = g if ctx.needs_input_grad[0] else None
        if torch.is_grad_enabled():
            e = normals(loc.shape, ctx.seed) if e is None else e
            return twice_differentiable(
                lambda m, a, b: torch.addcmul(m, a.t() @ b, e), (loc, u, v), ctx, g
            )
        if ctx.seed is None:
            h = g * e
            return gloc, v @ h.t(), u @ h
        dense = g.contiguous(), u.contiguous(), v.contiguous()
        gu, gv = u.new_empty(u.shape), v.new_empty(v.shape)
        tensors = map(pointer, (*dense, gu, gv))
        loaded().k_tied_draw_backward(
            *tensors, *loc.shape, u.shape[0], ctx.seed, threads(loc.numel())
        )
        return gloc, gu, gv
