"""Local noise of k-tied weights: variances of low rank, which are never written to memory."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.kernels.fused import Fused, fusible, in_full_precision, twice_differentiable
from leanbayes.kernels.local import drawn_noise, noisy, safe_sqrt, slope_of_variance, spread
from leanbayes.kernels.native import (
    LARGEST_RANK,
    library,
    loaded,
    normals,
    pointer,
    seed,
    threads,
)
from leanbayes.kernels.products import product

__all__ = [
    "add_mixed_noise",
    "can_mix",
    "k_tied_local",
    "native_noise",
    "native_slopes",
    "variance_factors",
]


def k_tied_local(
    x: Tensor, loc: Tensor, u: Tensor, v: Tensor, bias: Tensor | None, logs: bool = False
) -> Tensor:
    """Outputs of weights with ``scale = uᵀ v``, whose variances take two skinny products.

    Args:
        x: inputs ``[batch, in]``.
        loc: means ``[out, in]``.
        u: row factors ``[k, out]``.
        v: column factors ``[k, in]``.
        bias: ``[out]``.
        logs: whether logarithms of the factors are given, which saves two nodes of the graph.

    Example:
        >>> u, v = torch.zeros(2, 4), torch.ones(2, 3)
        >>> float(k_tied_local(torch.ones(5, 3), torch.ones(4, 3), u, v, torch.ones(4)).sum())
        80.0
    """
    return _KTiedLocal.apply(x, loc, u, v, bias, logs)


class _Pairs(NamedTuple):
    """The pairs ``a ≤ b`` of some things.

    Attributes:
        first: every ``a``.
        second: every ``b``.
        times: how often each counts in a square, ``[pairs, 1]``.
        of: which pair each thing makes with each, ``[things²]``.
    """

    first: Tensor
    second: Tensor
    times: Tensor
    of: Tensor


@cache
def _pairs(rank: int, dtype: torch.dtype, device: torch.device) -> _Pairs:
    first, second = torch.triu_indices(rank, rank, device=device)
    of = torch.empty(rank, rank, dtype=torch.int64, device=device)
    of[first, second] = of[second, first] = torch.arange(len(first), device=device)
    times = 2.0 - (first == second).to(dtype).unsqueeze(-1)
    return _Pairs(first, second, times, of.flatten())


def variance_factors(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Factors ``p [K, in]`` and ``q [K, out]`` of the variance ``(uᵀ v)²``, ``K = k(k+1)/2``."""
    first, second, times, _ = _pairs(u.shape[0], u.dtype, u.device)
    p = v.index_select(0, first).mul_(v.index_select(0, second))
    return p, u.index_select(0, first).mul_(u.index_select(0, second)).mul_(times)


class _KTiedLocal(Fused):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, loc: Tensor, u: Tensor, v: Tensor, bias: Tensor | None, logs: bool
    ) -> Tensor:
        y, rank = product(x, loc, bias), u.shape[0]
        dense = x.contiguous(), u.contiguous(), v.contiguous()
        ctx.logs, ctx.seed, native = logs, None, library(y, *dense)
        if native is not None and rank <= LARGEST_RANK:
            ctx.seed = seed()
            shared = native_noise(y, *dense, logs, ctx.seed)
            ctx.save_for_backward(x, loc, u, v, bias, shared)
            return y
        p, q = variance_factors(*_factors(u, v, logs))
        square = x * x
        shared = square @ p.t()
        kept = shared @ q
        if native is None:
            kept = spread(y, kept.sqrt_())
        else:
            ctx.seed = noisy(y, kept)
        ctx.save_for_backward(x, loc, u, v, bias, shared, square, p, q, kept)
        return y

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, (x, loc, u, v, _, shared, *rest) = grads[0], ctx.saved_tensors
        if torch.is_grad_enabled():
            return _k_tied_twice(ctx, g)
        need_x, need_loc, _, _, need_bias, _ = ctx.needs_input_grad
        gx = product(g, loc.t()) if need_x else None
        gloc = g.t() @ x if need_loc else None
        if not rest:
            gbias, gu, gv = native_slopes(g, x, u, v, shared, gx, ctx.logs, ctx.seed)
            return gx, gloc, gu, gv, gbias if need_bias else None, None
        u, v = _factors(u, v, ctx.logs)
        square, p, q, kept = rest
        if ctx.seed is None:
            slope = g * kept  # twice that of the variance
        else:
            slope = slope_of_variance(g, kept, None, ctx.seed).mul_(2.0)
        gshared = slope @ q.t()
        if gx is not None:
            gx.addcmul_(x, gshared @ p)
        gp, gq = gshared.t() @ square, shared.t() @ slope
        pairs = _pairs(u.shape[0], u.dtype, u.device)
        gu, gv = _of_pairs(u, gq, pairs), _of_pairs(v, gp.div_(pairs.times), pairs)
        if ctx.logs:
            gu, gv = gu.mul_(u), gv.mul_(v)
        return gx, gloc, gu, gv, g.sum(0) if need_bias else None, None


def native_noise(y: Tensor, x: Tensor, u: Tensor, v: Tensor, logs: bool, by: int) -> Tensor:
    """Add noise to outputs in place; returns what their variances are made of, ``[batch, K]``."""
    rank = len(u)
    shared = x.new_empty(len(x), rank * (rank + 1) // 2)
    tensors = map(pointer, (x, u, v, shared, y))
    sizes = (*x.shape, y.shape[1], rank, logs)
    loaded().k_tied_forward(*tensors, *sizes, by, threads(x.numel()))
    return shared


def native_slopes(
    g: Tensor,
    x: Tensor,
    u: Tensor,
    v: Tensor,
    shared: Tensor,
    gx: Tensor | None,
    logs: bool,
    by: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of bias, ``u`` and ``v``; that of ``x`` by variances is added to ``gx``."""
    dense = g.contiguous(), x.contiguous(), u.contiguous(), v.contiguous()
    gu, gv, gbias = u.new_empty(u.shape), v.new_empty(v.shape), g.new_empty(g.shape[1])
    tensors = map(pointer, (*dense, shared, gx, gbias, gu, gv))
    sizes = (*x.shape, g.shape[1], len(u), logs)
    loaded().k_tied_backward(*tensors, *sizes, by, threads(x.numel()))
    return gbias, gu, gv


def _factors(u: Tensor, v: Tensor, logs: bool) -> tuple[Tensor, Tensor]:
    return (u.exp(), v.exp()) if logs else (u, v)


def _of_pairs(w: Tensor, g: Tensor, pairs: _Pairs) -> Tensor:
    """The gradient of ``w``: of each row, that of its pairs times the other row."""
    rank = len(w)
    return (g.index_select(0, pairs.of).view(rank, rank, -1) * w).sum(1)


def _k_tied_twice(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, loc, u, v, bias, _, *rest = ctx.saved_tensors

    def variance(x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        u, v = _factors(u, v, ctx.logs)
        return (x * x) @ (u.t() @ v).square().t()

    ratio = rest[-1] if ctx.seed is None else None
    e = drawn_noise(ctx.seed, ratio, variance(x, u, v))

    def plain(x: Tensor, loc: Tensor, u: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        return torch.addcmul(F.linear(x, loc, bias), safe_sqrt(variance(x, u, v)), e)

    return twice_differentiable(plain, (x, loc, u, v, bias), ctx, g)


def can_mix(x: Tensor, u: Tensor) -> bool:
    """Whether :func:`add_mixed_noise` has a kernel for inputs ``x`` and factors ``u [k, out]``."""
    plain = fusible(x, u) and x.dtype == torch.float32 and x.is_cpu
    return plain and len(u) <= LARGEST_RANK and library(u.detach().contiguous()) is not None


def add_mixed_noise(mean: Tensor, shared: Tensor, u: Tensor) -> Tensor:
    """Noise for outputs whose channels come second: ``variance[b, c] = Σ_r u[r, c] shared[b, r]``.

    Only natively, see :func:`can_mix`.

    Args:
        mean: outputs ``[batch, channels, …]``.
        shared: what the variances of all channels are made of, ``[batch, K, …]``, for the
            ``K = k(k+1)/2`` pairs of a k-tied scale.
        u: their weights ``[K, channels]``.
    """
    return _AddMixedNoise.apply(mean, shared, u)


class _AddMixedNoise(Fused):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, shared: Tensor, u: Tensor) -> Tensor:
        y = mean.clone(memory_format=torch.contiguous_format)
        rank = (math.isqrt(8 * len(u) + 1) - 1) // 2
        ctx.sizes = (*y.shape[:2], math.prod(y.shape[2:]), rank, seed())
        dense = shared.contiguous(), u.contiguous()
        tensors = map(pointer, (y, *dense))
        loaded().k_tied_mix_forward(*tensors, *ctx.sizes, threads(y.numel()))
        ctx.save_for_backward(mean, shared, u)
        return y

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, (mean, shared, u) = grads[0], ctx.saved_tensors
        if torch.is_grad_enabled():
            batch, channels, n, _, by = ctx.sizes
            e = normals((batch * channels, n), by).reshape(mean.shape)

            def plain(mean: Tensor, shared: Tensor, u: Tensor) -> Tensor:
                variance = (u.t() @ shared.flatten(2)).reshape(mean.shape)
                return torch.addcmul(mean, safe_sqrt(variance), e)

            return twice_differentiable(plain, (mean, shared, u), ctx, g)
        dense = g.contiguous(), shared.contiguous(), u.contiguous()
        gshared, gu = shared.new_empty(shared.shape), u.new_empty(u.shape)
        tensors = map(pointer, (*dense, gshared, gu))
        loaded().k_tied_mix_backward(*tensors, *ctx.sizes, threads(g.numel()))
        return g if ctx.needs_input_grad[0] else None, gshared, gu
