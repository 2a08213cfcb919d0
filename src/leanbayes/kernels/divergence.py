"""KL from one normal for all weights: the value and its gradient from one pass."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from leanbayes.kernels.fused import fusible, in_full_precision, twice_differentiable
from leanbayes.kernels.native import LARGEST_RANK, as_rows, library, pointer, threads

__all__ = ["k_tied_kl", "no_force", "relevance_kl", "scaled_kl"]


def scaled_kl(loc: Tensor | None, scale: Tensor, prior_loc: float, prior_scale: float) -> Tensor:
    """``KL(N(loc, scale²) ‖ N(prior_loc, prior_scale²))``, summed over weights.

    Args:
        loc: means ``[out, in]``; ``None`` for zero.
        scale: standard deviations ``[out, in]``.
        prior_loc: the mean of the prior.
        prior_scale: its standard deviation.

    Example:
        >>> float(scaled_kl(torch.ones(2, 3), torch.ones(2, 3), 0.0, 1.0))
        3.0
    """
    return _ScaledKL.apply(loc, scale, prior_loc, prior_scale)  # type: ignore[no-untyped-call]


def k_tied_kl(loc: Tensor, u: Tensor, v: Tensor, prior_loc: float, prior_scale: float) -> Tensor:
    """The same for ``scale = uᵀ v``.

    Example:
        >>> float(k_tied_kl(torch.ones(2, 3), torch.ones(1, 2), torch.ones(1, 3), 0.0, 1.0))
        3.0
    """
    return _KTiedKL.apply(loc, u, v, prior_loc, prior_scale)  # type: ignore[no-untyped-call]


def relevance_kl(mean: Tensor, variance: Tensor) -> Tensor:
    """``½ Σ log(1 + mean² / variance)``: the KL of normal weights from their own best priors.

    Example:
        >>> round(float(relevance_kl(torch.ones(2, 3), torch.ones(2, 3)) / math.log(2)), 4)
        3.0
    """
    if mean.shape != variance.shape or not fusible(mean, variance):
        return _plain_relevance_kl(mean, variance)
    return _RelevanceKL.apply(mean, variance)  # type: ignore[no-untyped-call]


def _plain_relevance_kl(mean: Tensor, variance: Tensor) -> Tensor:
    return 0.5 * (mean.square() / variance).log1p().sum()


def no_force(scale: Tensor) -> Tensor:
    """Zero, whatever the scales are: the KL of zero-mean weights from a prior without a scale.

    Example:
        >>> scale = torch.rand(2, 3, requires_grad=True)
        >>> no_force(scale).backward()
        >>> scale.grad is None
        True
    """
    if not fusible(scale):
        return 0.0 * scale.sum()
    return _NoForce.apply(scale)  # type: ignore[no-untyped-call]


class _NoForce(Function):
    @staticmethod
    def forward(ctx: Any, scale: Tensor) -> Tensor:
        return scale.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        """No gradient, rather than a matrix of zeros that would be added to another one."""


def _squares(w: Tensor, center: float) -> Tensor:
    """``Σ (w − center)²``."""
    flat = (w - center if center else w).reshape(-1)
    return torch.dot(flat, flat)


def _constant(count: int, prior_scale: float) -> float:
    return count * (math.log(prior_scale) - 0.5)


def _slope_of_means(loc: Tensor, center: float, factor: float) -> Tensor:
    return (loc - center).mul_(factor) if center else loc * factor


class _ScaledKL(Function):
    @staticmethod
    def forward(
        ctx: Any, loc: Tensor | None, scale: Tensor, prior_loc: float, prior_scale: float
    ) -> Tensor:
        ctx.prior = prior_loc, prior_scale
        precision, native = prior_scale**-2, library(loc, scale)
        if native is not None:
            slope = torch.empty_like(scale)
            tensors, rows = map(pointer, (loc, scale, slope)), scale.shape[0]
            sizes = (rows, scale.numel() // max(rows, 1))
            total = native.scale_kl(*tensors, *sizes, *ctx.prior, threads(scale.numel()))
            ctx.save_for_backward(loc, scale, slope)
            return torch.tensor(total, dtype=scale.dtype)
        ctx.save_for_backward(loc, scale, None)
        square = _squares(scale, 0.0)
        if loc is not None:
            square = square + _squares(loc, prior_loc)
        else:
            square = square + scale.numel() * prior_loc**2
        logs = scale.abs().log_().sum()
        return (square * (0.5 * precision)).sub_(logs).add_(_constant(scale.numel(), prior_scale))

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        loc, scale, slope = ctx.saved_tensors
        center, width = ctx.prior
        need_loc, need_scale = ctx.needs_input_grad[:2]
        precision = width**-2
        if torch.is_grad_enabled():
            inputs = (loc, scale)

            def plain(loc: Tensor | None, scale: Tensor) -> Tensor:
                total = 0.5 * precision * scale.square().sum() - scale.abs().log().sum()
                return total if loc is None else total + 0.5 * precision * _squares(loc, center)

            return twice_differentiable(plain, inputs, ctx, grads[0])
        g, gloc, gscale = float(grads[0]), None, None
        if need_scale:
            if slope is None:
                slope = scale.reciprocal().neg_().add_(scale, alpha=precision)
            gscale = slope * g
        if need_loc and loc is not None:
            gloc = _slope_of_means(loc, center, g * precision)
        return gloc, gscale, None, None


class _RelevanceKL(Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor) -> Tensor:
        ctx.save_for_backward(mean, variance)
        native = library(mean, variance)
        if native is None:
            return _plain_relevance_kl(mean, variance)
        tensors = map(pointer, (mean, variance))
        total = native.relevance_kl(*tensors, *as_rows(mean), threads(mean.numel()))
        return torch.tensor(total, dtype=mean.dtype)

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        mean, variance = ctx.saved_tensors
        if torch.is_grad_enabled():
            return twice_differentiable(_plain_relevance_kl, (mean, variance), ctx, grads[0])
        native, g = library(mean, variance), float(grads[0])
        if native is None:
            force = mean / torch.addcmul(variance, mean, mean) * g
            return force, (force * mean).div_(variance).mul_(-0.5)
        slopes = torch.empty_like(mean), torch.empty_like(variance)
        tensors = map(pointer, (mean, variance, *slopes))
        native.relevance_backward(*tensors, *as_rows(mean), g, threads(mean.numel()))
        return slopes


class _KTiedKL(Function):
    @staticmethod
    def forward(
        ctx: Any, loc: Tensor, u: Tensor, v: Tensor, prior_loc: float, prior_scale: float
    ) -> Tensor:
        ctx.prior = prior_loc, prior_scale
        dense = loc, u.contiguous(), v.contiguous()
        (rank, m), n = u.shape, v.shape[1]
        native = library(*dense)
        if native is not None and rank <= LARGEST_RANK:
            gu, gv = u.new_empty(u.shape), v.new_empty(v.shape)
            tensors = map(pointer, (*dense, gu, gv))
            total = native.k_tied_kl(*tensors, m, n, rank, *ctx.prior, threads(m * n))
            ctx.save_for_backward(loc, u, v, gu, gv)
            return torch.tensor(total, dtype=loc.dtype)
        precision = prior_scale**-2
        if rank == 1:  # the log of a product separates
            logs = n * u.log().sum() + m * v.log().sum()
            ru, rv = n / u, m / v
        else:
            scale = u.t() @ v
            logs = scale.log().sum()
            inverse = scale.reciprocal_()
            ru, rv = v @ inverse.t(), u @ inverse
        of_u, of_v = u @ u.t(), v @ v.t()
        gu = torch.addmm(ru, of_v, u, beta=-1, alpha=precision)
        gv = torch.addmm(rv, of_u, v, beta=-1, alpha=precision)
        ctx.save_for_backward(loc, u, v, gu, gv)
        square = _squares(loc, prior_loc) + torch.dot(of_u.view(-1), of_v.view(-1))
        return (square * (0.5 * precision)).sub_(logs).add_(_constant(m * n, prior_scale))

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        loc, u, v, gu, gv = ctx.saved_tensors
        center, width = ctx.prior
        if torch.is_grad_enabled():

            def plain(loc: Tensor, u: Tensor, v: Tensor) -> Tensor:
                scale = u.t() @ v
                square = _squares(loc, center) + scale.square().sum()
                return 0.5 * width**-2 * square - scale.log().sum()

            return twice_differentiable(plain, (loc, u, v), ctx, grads[0])
        g, gloc = float(grads[0]), None
        if ctx.needs_input_grad[0]:
            gloc = _slope_of_means(loc, center, g * width**-2)
        return gloc, gu * g, gv * g, None, None
