"""Kernels of k-tied weights: variances of low rank, which are never written to memory."""

import math
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import custom_op

from leanbayes.distributions import KTiedNormal
from leanbayes.distributions.base import safe_sqrt
from leanbayes.kernels.dispatch import (
    GRAPH,
    Computation,
    Saved,
    Tensors,
    Value,
    graph_seed,
    kernel,
    library,
    loaded,
    native_logs,
    normals,
    pointer,
    product,
    run,
    seed,
    threads,
)
from leanbayes.kernels.native import LARGEST_RANK
from leanbayes.kernels.noise import (
    NARROW,
    NoisyOutputs,
    Sharing,
    graph_normals,
    narrow_samples,
    room_for,
    shared_noise,
    slope_of_variance,
    spread,
)
from leanbayes.ops import Conv, ConvTranspose, Linear


def factors_of(u: Tensor, v: Tensor, log_unit: float | None) -> tuple[Tensor, Tensor]:
    """Return the factors of a scale, given or by their logarithms in some unit."""
    return (u, v) if log_unit is None else ((u + log_unit).exp_(), (v + log_unit).exp_())


# ---- a draw of the weights


class _Draw(Computation):
    def forward(self, loc: Tensor, u: Tensor, v: Tensor) -> Value:
        dense, rank = (loc, u.contiguous(), v.contiguous()), u.shape[0]
        native = library(*dense)
        if native is None or rank > LARGEST_RANK:
            e = torch.empty_like(loc).normal_()
            return Value(self.plain(e, loc, u, v), None, (e,))
        w, by = torch.empty_like(loc), seed()
        sizes = *loc.shape, rank, by, threads(loc.numel())
        native.k_tied_draw_forward(*map(pointer, (*dense, w)), *sizes)
        return Value(w, by)

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        _, u, v = call.tensors
        gloc = g if call.needed[0] else None
        if call.seed is None:
            h = g * call.kept[0]
            return gloc, v @ h.t(), u @ h
        dense = g.contiguous(), u.contiguous(), v.contiguous()
        gu, gv = u.new_empty(u.shape), v.new_empty(v.shape)
        sizes = *g.shape, u.shape[0], call.seed, threads(g.numel())
        loaded().k_tied_draw_backward(*map(pointer, (*dense, gu, gv)), *sizes)
        return gloc, gu, gv

    def plain(self, e: Tensor, loc: Tensor, u: Tensor, v: Tensor) -> Tensor:
        return torch.addcmul(loc, u.t() @ v, e)

    def noise(self, g: Tensor, call: Saved) -> Any:
        return super().noise(g, call) if call.seed is not None else call.kept[0]


def draw_k_tied(loc: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return ``loc + (uᵀ v) ∘ ε``."""
    return run(_Draw(), loc, u, v)


@kernel("draw", KTiedNormal)
def _draw(q: KTiedNormal, _: None) -> Tensor:
    return draw_k_tied(q.loc, q.u, q.v)


@kernel("draw", KTiedNormal, mode=GRAPH)
def _graph_draw(q: KTiedNormal, _: None) -> Tensor:
    return torch.addcmul(q.loc, q.scale, graph_normals(q.loc))


# ---- outputs


class _Pairs(NamedTuple):
    """The pairs ``a ≤ b`` of some things.

    Attributes:
        first: every ``a``.
        second: every ``b``.
        times: count of each in a square, ``[pairs, 1]``.
        of: pair that each thing makes with each, ``[things²]``.
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


def _variance_factors(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Factors ``p [K, in]`` and ``q [K, out]`` of the variance ``(uᵀ v)²``, ``K = k(k+1)/2``."""
    first, second, times, _ = _pairs(u.shape[0], u.dtype, u.device)
    p = v.index_select(0, first).mul_(v.index_select(0, second))
    return p, u.index_select(0, first).mul_(u.index_select(0, second)).mul_(times)


def _of_pairs(w: Tensor, g: Tensor, pairs: _Pairs) -> Tensor:
    """Return the gradient of ``w``: of each row, that of its pairs times the other row."""
    rank = len(w)
    return (g.index_select(0, pairs.of).view(rank, rank, -1) * w).sum(1)


class KTiedOutputs(NoisyOutputs):
    """Outputs of weights with ``scale = uᵀ v``, whose variances take two skinny products.

    With a ``log_unit``, ``u`` and ``v`` are logarithms of the factors in that unit: the graph has
    fewer nodes.
    """

    def __init__(self, log_unit: float | None) -> None:
        self.log_unit = log_unit

    def forward(self, x: Tensor, loc: Tensor, u: Tensor, v: Tensor, bias: Tensor | None) -> Value:
        y = product(x, loc, bias)
        dense = x.contiguous(), u.contiguous(), v.contiguous()
        native = library(y, *dense)
        if native is not None and u.shape[0] <= LARGEST_RANK:
            by, rank = seed(), u.shape[0]
            shared = x.new_empty(len(x), rank * (rank + 1) // 2)
            sizes = *x.shape, y.shape[1], rank, *native_logs(self.log_unit), by, threads(x.numel())
            native.k_tied_forward(*map(Tensor.data_ptr, (*dense, shared, y)), *sizes)
            return Value(y, by, (shared,))
        p, q = _variance_factors(*factors_of(u, v, self.log_unit))
        square = x * x
        shared = square @ p.t()
        by_or_none, kept = spread(y, shared @ q, native)
        return Value(y, by_or_none, (shared, square, p, q, kept))

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        (x, loc, u, v, _), (shared, *rest) = call.tensors, call.kept
        need_x, need_loc, _, _, need_bias = call.needed
        gx = product(g, loc.t()) if need_x else None
        gloc = product(g.t(), x.t()) if need_loc else None
        if not rest:
            gbias, gu, gv = _native_slopes(g, x, u, v, shared, gx, self.log_unit, call.seed)
            return gx, gloc, gu, gv, gbias if need_bias else None
        u, v = factors_of(u, v, self.log_unit)
        square, p, q, kept = rest
        slope = slope_of_variance(g, kept, call.seed).mul_(2.0)
        gshared = slope @ q.t()
        if gx is not None:
            gx.addcmul_(x, gshared @ p)
        gp, gq = gshared.t() @ square, shared.t() @ slope
        pairs = _pairs(u.shape[0], u.dtype, u.device)
        gu, gv = _of_pairs(u, gq, pairs), _of_pairs(v, gp.div_(pairs.times), pairs)
        if self.log_unit is not None:
            gu, gv = gu.mul_(u), gv.mul_(v)
        return gx, gloc, gu, gv, g.sum(0) if need_bias else None

    def law(
        self, x: Tensor, loc: Tensor, u: Tensor, v: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        u, v = factors_of(u, v, self.log_unit)
        return F.linear(x, loc, bias), (x * x) @ (u.t() @ v).square().t()


def _native_slopes(
    g: Tensor,
    x: Tensor,
    u: Tensor,
    v: Tensor,
    shared: Tensor,
    gx: Tensor | None,
    log_unit: float | None,
    by: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of bias, ``u`` and ``v``; that of ``x`` by variances is added to ``gx``."""
    dense = g.contiguous(), x.contiguous(), u.contiguous(), v.contiguous()
    gu, gv, gbias = u.new_empty(u.shape), v.new_empty(v.shape), g.new_empty(g.shape[1])
    sizes = *x.shape, g.shape[1], len(u), *native_logs(log_unit), by, threads(x.numel())
    loaded().k_tied_backward(*map(pointer, (*dense, shared, gx, gbias, gu, gv)), *sizes)
    return gbias, gu, gv


@kernel("local", KTiedNormal, Linear)
def _local(q: KTiedNormal, op: Linear, x: Tensor, bias: Tensor | None) -> Tensor | None:
    if x.ndim != 2:
        return None
    return run(KTiedOutputs(q.log_unit), x, q.loc, q.given_u, q.given_v, bias)


@kernel("local", KTiedNormal, Linear, mode=GRAPH)
def _graph_local(q: KTiedNormal, op: Linear, x: Tensor, bias: Tensor | None) -> Tensor | None:
    if x.ndim != 2 or q.rank > LARGEST_RANK:
        return None
    given = F.linear(x, q.loc, bias), x, q.given_u, q.given_v
    return _noise_op(*given, graph_seed(), q.log_unit)[0]


@custom_op("leanbayes::k_tied_noise", mutates_args=(), device_types="cpu")
def _noise_op(
    mean: Tensor, x: Tensor, u: Tensor, v: Tensor, seed: Tensor, log_unit: float | None
) -> tuple[Tensor, Tensor]:
    y = mean.clone(memory_format=torch.contiguous_format)
    dense, rank = (x.contiguous(), u.contiguous(), v.contiguous()), len(u)
    shared = x.new_empty(len(x), rank * (rank + 1) // 2)
    sizes = *x.shape, y.shape[1], rank, *native_logs(log_unit), int(seed), threads(x.numel())
    loaded().k_tied_forward(*map(pointer, (*dense, shared, y)), *sizes)
    return y, shared


@custom_op("leanbayes::k_tied_noise_backward", mutates_args=(), device_types="cpu")
def _noise_backward_op(
    g: Tensor, x: Tensor, u: Tensor, v: Tensor, shared: Tensor, seed: Tensor, log_unit: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    gx = torch.zeros_like(x, memory_format=torch.contiguous_format)
    _, gu, gv = _native_slopes(g, x, u, v, shared, gx, log_unit, int(seed))
    return gx, gu, gv


@_noise_op.register_fake
def _(
    mean: Tensor, x: Tensor, u: Tensor, v: Tensor, seed: Tensor, log_unit: float | None
) -> tuple[Tensor, Tensor]:
    rank = u.shape[0]
    y = torch.empty_like(mean, memory_format=torch.contiguous_format)
    return y, x.new_empty(x.shape[0], rank * (rank + 1) // 2)


@_noise_backward_op.register_fake
def _(
    g: Tensor, x: Tensor, u: Tensor, v: Tensor, shared: Tensor, seed: Tensor, log_unit: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    gx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return gx, u.new_empty(u.shape), v.new_empty(v.shape)


def _save_noise(ctx: Any, inputs: Any, output: Any) -> None:
    _, x, u, v, seed, ctx.log_unit = inputs
    ctx.save_for_backward(x, u, v, output[1], seed)


def _noise_backward(ctx: Any, g: Tensor, _: Tensor) -> Tensors:
    return g, *_noise_backward_op(g, *ctx.saved_tensors, ctx.log_unit), None, None


_noise_op.register_autograd(_noise_backward, setup_context=_save_noise)


# ---- outputs of convolutions


class _MixedNoise(Computation):
    def forward(self, mean: Tensor, shared: Tensor, u: Tensor) -> Value:
        y, by = mean.clone(memory_format=torch.contiguous_format), seed()
        dense = y, shared.contiguous(), u.contiguous()
        loaded().k_tied_mix_forward(*map(pointer, dense), *_mixed_sizes(y, u, by))
        return Value(y, by)

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        _, shared, u = call.tensors
        gshared, gu = shared.new_empty(shared.shape), u.new_empty(u.shape)
        dense = g.contiguous(), shared.contiguous(), u.contiguous()
        sizes = _mixed_sizes(g, u, call.seed)
        loaded().k_tied_mix_backward(*map(pointer, (*dense, gshared, gu)), *sizes)
        return g if call.needed[0] else None, gshared, gu

    def plain(self, e: Tensor, mean: Tensor, shared: Tensor, u: Tensor) -> Tensor:
        variance = (u.t() @ shared.flatten(2)).reshape(mean.shape)
        return torch.addcmul(mean, safe_sqrt(variance), e)

    def noise(self, g: Tensor, call: Saved) -> Tensor:
        assert call.seed is not None
        return normals((g.shape[0] * g.shape[1], math.prod(g.shape[2:])), call.seed).view(g.shape)


def _mixed_sizes(y: Tensor, u: Tensor, by: int | None) -> tuple[Any, ...]:
    rank = (math.isqrt(8 * len(u) + 1) - 1) // 2
    return *y.shape[:2], math.prod(y.shape[2:]), rank, by, threads(y.numel())


def add_mixed_noise(mean: Tensor, shared: Tensor, u: Tensor) -> Tensor:
    """Add noise to outputs ``[b, c, …]`` of ``variance[b, c] = Σ_r u[r, c] shared[b, r]``.

    There is only a native kernel.

    Args:
        mean: outputs ``[batch, channels, …]``.
        shared: parts of the variances of all channels, ``[batch, K, …]``, for the
            ``K = k(k+1)/2`` pairs of a k-tied scale.
        u: their weights ``[K, channels]``.
    """
    return run(_MixedNoise(), mean, shared, u)


@kernel("local", KTiedNormal, Conv)
@kernel("local", KTiedNormal, ConvTranspose)
def _convolved(
    q: KTiedNormal, op: Conv | ConvTranspose, x: Tensor, bias: Tensor | None
) -> Tensor | None:
    single = x.dtype == torch.float32 and x.is_cpu
    if op.groups > 1 or q.rank > LARGEST_RANK or not single:
        return None
    if library(q.u.detach().contiguous()) is None:
        return None
    u, v = q.variance_factors()
    return add_mixed_noise(op.affine(x, q.loc, bias), op(op.square(x), v), u)


# ---- all samples of a prediction


@kernel("samples", KTiedNormal, Linear)
def _samples(
    q: KTiedNormal, op: Linear, x: Tensor, bias: Tensor | None, sharing: Sharing
) -> Tensor | None:
    return k_tied_samples(x, q.loc, q.u, q.v, bias, sharing) if x.ndim == 2 else None


def k_tied_samples(
    x: Tensor, loc: Tensor, u: Tensor, v: Tensor, bias: Tensor | None, sharing: Sharing
) -> Tensor:
    """Return draws ``[samples · examples, out]`` of outputs that a forward pass draws once."""
    dense, (rank, n) = (x.contiguous(), loc, bias, u.contiguous(), v.contiguous()), u.shape
    native = library(*dense)
    if native is not None and n <= NARROW:
        y = narrow_samples(x, loc, (u.t() @ v).square_(), bias, sharing)
        assert y is not None
        return y
    if rank > LARGEST_RANK or native is None:
        p, q = _variance_factors(u, v)
        return shared_noise(product(x, loc, bias), None, (x * x) @ p.t() @ q, sharing)
    mean = product(x, loc)
    y, given = room_for(mean, sharing), len(x) // max(sharing.examples, 1)
    tensors = map(pointer, (y, dense[0], mean, *dense[2:]))
    sizes = sharing.samples, sharing.examples, n, given, sharing.each, x.shape[1], rank
    native.k_tied_fold(*tensors, *sizes, seed(), threads(y.numel()))
    return y
