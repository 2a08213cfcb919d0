"""Local noise: outputs with noise of their own, ``mean + √variance ∘ ε``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes.kernels.fused import Fused, fusible, in_full_precision, twice_differentiable
from leanbayes.kernels.native import as_rows, library, loaded, normals, pointer, seed, threads
from leanbayes.kernels.products import product

__all__ = [
    "add_noise",
    "drawn_noise",
    "noisy",
    "safe_sqrt",
    "scaled_local",
    "slope_of_variance",
    "spread",
]


def safe_sqrt(variance: Tensor) -> Tensor:
    """Square root whose gradient at zero is zero instead of infinite (dead units, x = 0)."""
    return variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()


def add_noise(mean: Tensor, variance: Tensor) -> Tensor:
    """``mean + √variance ∘ ε`` with standard normal ``ε`` in the shape of the variance.

    The gradient is zero where the variance is.

    Args:
        mean: broadcasts to the variance.
        variance: not negative.

    Example:
        >>> add_noise(torch.ones(2, 3), torch.zeros(2, 3)).sum()
        tensor(6.)
    """
    if not fusible(mean, variance):
        return torch.addcmul(mean, safe_sqrt(variance), torch.randn_like(variance))
    return _AddNoise.apply(mean, variance)


def scaled_local(x: Tensor, loc: Tensor | None, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Outputs ``[batch, out]`` of independent normal weights: ``N(x locᵀ + bias, x² scale²ᵀ)``.

    Args:
        x: inputs ``[batch, in]``.
        loc: means ``[out, in]``; ``None`` for zero, which saves a product.
        scale: standard deviations ``[out, in]``.
        bias: ``[out]``.

    Example:
        >>> y = scaled_local(torch.ones(5, 3), torch.ones(2, 3), torch.zeros(2, 3), None)
        >>> y.shape, float(y.sum())
        (torch.Size([5, 2]), 30.0)
    """
    return _ScaledLocal.apply(x, loc, scale, bias)


def spread(y: Tensor, std: Tensor) -> Tensor:
    """Add noise of these standard deviations in place; returns ``ε / std``, zero where they are."""
    e = torch.randn_like(std)
    y.addcmul_(std, e)
    return e.div_(std).nan_to_num_(0.0, 0.0, 0.0)


def noisy(y: Tensor, variance: Tensor, by: int | None = None) -> int:
    """Add noise in place, natively; returns its seed."""
    by = seed() if by is None else by
    loaded().noise_forward(pointer(y), pointer(variance), *as_rows(y), by, threads(y.numel()))
    return by


def drawn_noise(native_seed: int | None, ratio: Tensor | None, variance: Tensor) -> Tensor:
    """The ε that a forward pass drew."""
    if native_seed is None:
        assert ratio is not None
        return ratio * safe_sqrt(variance.detach())
    return normals(variance.shape, native_seed)


class _AddNoise(Fused):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor) -> Tensor:
        ctx.seed, native = None, library(mean, variance)
        y = mean.expand_as(variance).clone(memory_format=torch.contiguous_format)
        if native is None:
            ctx.save_for_backward(mean, variance, spread(y, variance.sqrt()))
            return y
        ctx.seed = noisy(y, variance)
        ctx.save_for_backward(mean, variance, None)
        return y

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, (mean, variance, ratio) = grads[0], ctx.saved_tensors
        if torch.is_grad_enabled():
            e = drawn_noise(ctx.seed, ratio, variance)
            return twice_differentiable(
                lambda m, s: torch.addcmul(m, safe_sqrt(s), e), (mean, variance), ctx, g
            )
        slope = None
        if ctx.needs_input_grad[1]:
            slope = slope_of_variance(g, variance, ratio, ctx.seed)
        return g.sum_to_size(mean.shape) if ctx.needs_input_grad[0] else None, slope


def slope_of_variance(
    g: Tensor, variance: Tensor | None, ratio: Tensor | None, native_seed: int | None
) -> Tensor:
    """The gradient of the variance: ``½ g ε / √variance``."""
    if native_seed is None:
        assert ratio is not None
        return (g * ratio).mul_(0.5)
    assert variance is not None
    g, slope = g.contiguous(), torch.empty_like(variance)
    rows = as_rows(slope)
    loaded().noise_backward(
        pointer(g), pointer(variance), pointer(slope), *rows, native_seed, threads(slope.numel())
    )
    return slope


class _ScaledLocal(Fused):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, loc: Tensor | None, scale: Tensor, bias: Tensor | None
    ) -> Tensor:
        square, weight = x * x, scale * scale
        variance = product(square, weight)
        if loc is not None:
            y = product(x, loc, bias)
        elif bias is not None:
            y = bias.expand_as(variance).clone()
        else:
            y = torch.zeros_like(variance)
        ctx.seed, ratio, native = None, None, library(y, variance)
        if native is None:
            ratio = spread(y, variance.sqrt_())
        else:
            ctx.seed = noisy(y, variance)
        kept = variance if ratio is None else ratio
        ctx.save_for_backward(x, loc, scale, bias, square, weight, kept)
        return y

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, (x, loc, scale, bias, square, weight, kept) = grads[0], ctx.saved_tensors
        need_x, need_loc, need_scale, need_bias = ctx.needs_input_grad
        variance, ratio = (kept, None) if ctx.seed is not None else (None, kept)
        if torch.is_grad_enabled():
            e = drawn_noise(ctx.seed, ratio, square @ weight.t())

            def plain(x: Tensor, loc: Tensor | None, scale: Tensor, bias: Tensor | None) -> Tensor:
                y = safe_sqrt((x * x) @ scale.square().t()) * e
                y = y if loc is None else y + x @ loc.t()
                return y if bias is None else y + bias

            return twice_differentiable(plain, (x, loc, scale, bias), ctx, g)
        gx = gscale = None
        if need_x or need_scale:
            slope = slope_of_variance(g, variance, ratio, ctx.seed)
            slope.mul_(2.0)
        if need_scale:
            gscale = (slope.t() @ square).mul_(scale)
        if need_x:
            gx = product(slope, weight.t()).mul_(x)
            gx = gx if loc is None else gx.add_(product(g, loc.t()))
        return gx, g.t() @ x if need_loc else None, gscale, g.sum(0) if need_bias else None
