"""Kernels of independent normal weights."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from leanbayes.distributions import (
    KTiedNormal,
    LocationScale,
    LogUniformDensity,
    RelevanceNormal,
    WeightDistribution,
)
from leanbayes.distributions.kl import has_moments_alone
from leanbayes.kernels.dispatch import (
    GRAPH,
    Computation,
    Saved,
    Tensors,
    Value,
    as_rows,
    kernel,
    library,
    loaded,
    pointer,
    product,
    run,
    seed,
    threads,
)
from leanbayes.kernels.divergence import KLTerm
from leanbayes.kernels.noise import (
    NoisyOutputs,
    Sharing,
    graph_normals,
    narrow_samples,
    shared_noise,
    slope_of_variance,
    spread,
)
from leanbayes.ops import Linear

# ---- a draw of the weights


class _Draw(Computation):
    def forward(self, loc: Tensor | None, scale: Tensor) -> Value:
        native = library(loc, scale)
        if native is None or scale.ndim != 2:
            e = torch.randn_like(scale)
            return Value(self.plain(e, loc, scale), None, (e,))
        w, by = torch.empty_like(scale), seed()
        native.draw_forward(*map(pointer, (loc, scale, w)), *w.shape, by, threads(w.numel()))
        return Value(w, by)

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        gloc = g if call.needed[0] else None
        if not call.needed[1] or call.seed is None:
            return gloc, g * call.kept[0] if call.needed[1] else None
        dense, gscale = g.contiguous(), torch.empty_like(call.tensors[1])
        sizes = *gscale.shape, call.seed, threads(gscale.numel())
        loaded().draw_backward(pointer(dense), pointer(gscale), *sizes)
        return gloc, gscale

    def plain(self, e: Tensor, loc: Tensor | None, scale: Tensor) -> Tensor:
        return scale * e if loc is None else torch.addcmul(loc, scale, e)

    def noise(self, g: Tensor, call: Saved) -> Any:
        return super().noise(g, call) if call.seed is not None else call.kept[0]


def draw_scaled(loc: Tensor | None, scale: Tensor) -> Tensor:
    """Return ``loc + scale ∘ ε`` with standard normal ``ε``; ``loc`` may be missing."""
    return run(_Draw(), loc, scale)


@kernel("draw", LocationScale)
def _draw(q: LocationScale, _: None) -> Tensor | None:
    return draw_scaled(q.loc, q.scale) if q.normal_marginals else None


@kernel("draw", LocationScale, mode=GRAPH)
def _graph_draw(q: LocationScale, _: None) -> Tensor | None:
    return _Draw().plain(graph_normals(q.scale), q.loc, q.scale) if q.normal_marginals else None


# ---- outputs


class _Local(NoisyOutputs):
    def __init__(self, log_unit: float | None) -> None:
        self.log_unit = log_unit

    def forward(self, x: Tensor, loc: Tensor | None, scale: Tensor, bias: Tensor | None) -> Value:
        square, weight = x * x, self._variances(scale)
        variance = product(square, weight)
        if loc is not None:
            y = product(x, loc, bias)
        elif bias is not None:
            y = bias.expand_as(variance).clone()
        else:
            y = torch.zeros_like(variance)
        by, kept = spread(y, variance, library(y, variance))
        return Value(y, by, (square, weight, kept))

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        (x, loc, scale, _), (square, weight, kept) = call.tensors, call.kept
        need_x, need_loc, need_scale, need_bias = call.needed
        gx = gscale = None
        if need_x or need_scale:
            slope = slope_of_variance(g, kept, call.seed)
            slope.mul_(2.0)
        if need_scale:
            gscale = product(slope.t(), square.t())
            gscale.mul_(scale if self.log_unit is None else weight)
        if need_x:
            gx = product(slope, weight.t()).mul_(x)
            gx = gx if loc is None else gx.add_(product(g, loc.t()))
        gloc = product(g.t(), x.t()) if need_loc else None
        return gx, gloc, gscale, g.sum(0) if need_bias else None

    def law(
        self, x: Tensor, loc: Tensor | None, scale: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        mean = x.new_zeros(()) if loc is None else x @ loc.t()
        return mean if bias is None else mean + bias, (x * x) @ self._variances(scale).t()

    def _variances(self, scale: Tensor) -> Tensor:
        if self.log_unit is None:
            return scale * scale
        return (scale + self.log_unit).mul_(2.0).exp_()


def scaled_local(
    x: Tensor,
    loc: Tensor | None,
    scale: Tensor,
    bias: Tensor | None,
    log_unit: float | None = None,
) -> Tensor:
    """Draw outputs ``[batch, out]`` of independent weights: ``N(x locᵀ + bias, x² scale²ᵀ)``."""
    return run(_Local(log_unit), x, loc, scale, bias)


@kernel("local", LocationScale, Linear)
def _local(q: LocationScale, op: Linear, x: Tensor, bias: Tensor | None) -> Tensor | None:
    fits = x.ndim == 2 and q.normal_marginals
    return scaled_local(x, q.loc, q.given_scale, bias, q.log_unit) if fits else None


_VARIANCES: WeakKeyDictionary[LocationScale, Tensor] = WeakKeyDictionary()
"""Variances of distributions that a prediction asks again and again, while none changes."""


@kernel("samples", LocationScale, Linear)
def _samples(
    q: LocationScale, op: Linear, x: Tensor, bias: Tensor | None, sharing: Sharing
) -> Tensor | None:
    if x.ndim != 2 or not q.normal_marginals:
        return None
    if q not in _VARIANCES:
        _VARIANCES[q] = q.variance
    return scaled_samples(x, q.loc, _VARIANCES[q], bias, sharing)


def scaled_samples(
    x: Tensor, loc: Tensor | None, variance: Tensor, bias: Tensor | None, sharing: Sharing
) -> Tensor:
    """Return draws ``[samples · examples, out]`` of outputs of independent normal weights.

    Args:
        x: inputs ``[rows, in]``, of all samples or of one that serves them all.
        loc: means ``[out, in]``; ``None`` for zero.
        variance: variances ``[out, in]``.
        bias: ``[out]``; ``None`` for zero.
        sharing: number of draws.
    """
    y = narrow_samples(x, loc, variance, bias, sharing)
    if y is not None:
        return y
    total = product(x * x, variance)
    if loc is None:
        return shared_noise(None, bias, total, sharing)
    if library(x.contiguous(), loc, bias, variance) is None:
        return shared_noise(product(x, loc, bias), None, total, sharing)
    return shared_noise(product(x, loc), bias, total, sharing)


# ---- KL from a prior without a scale (divergence has that from one normal)


class FromRelevance(KLTerm):
    """Normal weights ``(mean, variance)`` from the normal that fits each of them best."""

    def value(self, mean: Tensor, variance: Tensor) -> tuple[float, Tensors]:
        native = library(mean, variance)
        if native is None:
            return float(self.plain(mean, variance)), ()
        tensors, count = map(pointer, (mean, variance)), mean.numel()
        return native.relevance_kl(*tensors, *as_rows(mean), threads(count)), ()

    def slopes(self, tensors: Any, kept: Any, g: float, needed: Sequence[bool]) -> Tensors:
        mean, variance = tensors
        native = library(mean, variance)
        if native is None:
            force = mean / torch.addcmul(variance, mean, mean) * g
            return force, (force * mean).div_(variance).mul_(-0.5)
        slopes = torch.empty_like(mean), torch.empty_like(variance)
        given = map(pointer, (mean, variance, *slopes))
        native.relevance_backward(*given, *as_rows(mean), g, threads(mean.numel()))
        return slopes

    def plain(self, mean: Tensor, variance: Tensor) -> Tensor:
        return 0.5 * (mean.square() / variance).log1p().sum()


class NoForce(KLTerm):
    """Zero-mean weights from a prior without a scale: zero, and no gradient."""

    def value(self, scale: Tensor) -> tuple[float, Tensors]:
        return 0.0, ()

    def slopes(self, tensors: Any, kept: Any, g: float, needed: Sequence[bool]) -> Tensors:
        """Return ``None`` instead of a matrix of zeros that would be added to another one."""
        return (None,)

    def plain(self, scale: Tensor) -> Tensor:
        return 0.0 * scale.sum()


def _fitted(q: WeightDistribution, p: RelevanceNormal) -> KLTerm | None:
    """Return the KL of normal weights whose moments are all that is known."""
    fits = q.normal_marginals and has_moments_alone(q)
    return FromRelevance((q.mean, q.variance)) if fits else None


@kernel("kl", LocationScale, RelevanceNormal)
def _relevance(q: LocationScale, p: RelevanceNormal) -> KLTerm | None:
    return _no_force(q, p) if q.loc is None else _fitted(q, p)


@kernel("kl", LocationScale, LogUniformDensity)
def _no_force(q: LocationScale, p: RelevanceNormal | LogUniformDensity) -> KLTerm | None:
    return NoForce((q.scale,)) if q.loc is None and q.normal_marginals else None


kernel("kl", KTiedNormal, RelevanceNormal)(_fitted)
