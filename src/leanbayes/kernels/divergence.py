"""KLs from one normal for all weights: their sum over a model is one node of the graph.

At small batches nodes cost more than arithmetic. Sums are taken in float64: the KL of a large
matrix is a small difference of large sums.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Normal
from torch.library import custom_op

from leanbayes.distributions import (
    KTiedNormal,
    LocationScale,
)
from leanbayes.kernels.dispatch import (
    GRAPH,
    Computation,
    Saved,
    Tensors,
    Value,
    kernel,
    library,
    native_logs,
    pointer,
    run,
    threads,
)
from leanbayes.kernels.k_tied import factors_of
from leanbayes.kernels.native import LARGEST_RANK

_BLOCK = 6 * 2**15
_TOGETHER = 6
"""Numbers that are multiplied before a logarithm is taken: no six float32 leave float64's range."""


class KLTerm(ABC):
    """The KL of one matrix that some tensors describe."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors

    @abstractmethod
    def value(self, *tensors: Any) -> tuple[float, Tensors]:
        """Return the KL, and tensors that :meth:`slopes` needs."""

    @abstractmethod
    def slopes(self, tensors: Any, kept: Any, g: float, needed: Sequence[bool]) -> Tensors:
        """Return ``g`` times the gradient by each tensor, where it is needed."""

    @abstractmethod
    def plain(self, *tensors: Any) -> Tensor:
        """Return the KL but for a constant, as torch can differentiate it twice."""

    def total(self, others: Sequence[Self] = ()) -> Tensor:
        """Return the sum of this KL and of others, as one function."""
        tensors = list(self.tensors)
        for other in others:
            tensors += other.tensors
        y: Tensor = run(_Sum((self, *others)), *tensors)
        return y


class _Sum(Computation):
    """The sum of several KLs."""

    def __init__(self, terms: Sequence[KLTerm]) -> None:
        self.terms, self.ends, self.kept_ends = terms, [0], [0]
        for term in terms:
            self.ends.append(self.ends[-1] + len(term.tensors))

    def forward(self, *tensors: Any) -> Value:
        total, kept = 0.0, list[Tensor | None]()
        for term, (a, b) in zip(self.terms, pairwise(self.ends), strict=True):
            value, own = term.value(*tensors[a:b])
            total += value
            kept += own
            self.kept_ends.append(len(kept))
        like = tensors[1] if tensors[0] is None else tensors[0]  # means may be missing
        return Value(torch.tensor(total, dtype=like.dtype, device=like.device), None, tuple(kept))

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        number, slopes = float(g), list[Tensor | None]()
        parts = zip(self.terms, pairwise(self.ends), pairwise(self.kept_ends), strict=True)
        for term, (a, b), (c, d) in parts:
            slopes += term.slopes(call.tensors[a:b], call.kept[c:d], number, call.needed[a:b])
        return tuple(slopes)

    def plain(self, e: Any, *tensors: Any) -> Tensor:
        parts = zip(self.terms, pairwise(self.ends), strict=True)
        each = [term.plain(*tensors[a:b]) for term, (a, b) in parts]
        return sum(each[1:], each[0])


class FromNormal(KLTerm):
    """The KL from one normal for all weights.

    The first tensor has the means, or is missing for zero; the last one is the standard deviation
    of the normal if it is learned.

    Args:
        tensors: arguments of the function.
        loc: the mean of the normal.
        scale: its standard deviation.
        log_unit: for families whose tensors may be logarithms: that of their unit.
    """

    def __init__(
        self, tensors: Tensors, loc: float, scale: float, log_unit: float | None = None
    ) -> None:
        self.tensors, self.loc, self.scale, self.log_unit = tensors, loc, scale, log_unit
        self.square = 0.0

    def from_totals(self, square: float, logs: float, count: int) -> float:
        """Return the KL from ``Σ E(w − loc)²`` and ``Σ log σ``; rounding makes none negative."""
        self.square = square
        value = 0.5 * (square * self.scale**-2 - count) - (logs - count * math.log(self.scale))
        return 0.0 if value < 0 else value

    def slope_of_means(self, loc: Tensor, g: float) -> Tensor:
        """Return ``g`` times the gradient by the means."""
        factor = g * self.scale**-2
        return (loc - self.loc).mul_(factor) if self.loc else loc * factor

    def slope_of_prior(self, prior: Tensor | None, count: int, g: float) -> Tensor | None:
        """Return ``g`` times the gradient by the standard deviation, if it is learned."""
        if prior is None:
            return None
        return prior.new_tensor(g * (count / self.scale - self.square * self.scale**-3))

    def plain_kl(self, loc: Tensor | None, scale: Tensor, prior: Tensor | None) -> Tensor:
        """Return the KL but for a constant, as torch can differentiate it twice."""
        distance = scale.numel() * self.loc**2 if loc is None else (loc - self.loc).square().sum()
        width = self.scale if prior is None else prior
        total = 0.5 * (scale.square().sum() + distance) / width**2 - scale.abs().log().sum()
        return total if prior is None else total + scale.numel() * prior.log()


def numbers_of(p: Normal) -> tuple[float, float, Tensor | None] | None:
    """Return mean and standard deviation of one normal for all weights, if they can be read.

    The third is the standard deviation as a tensor if it is learned.
    """
    loc, scale = p.loc, p.scale
    if scale.ndim or loc.ndim or loc.requires_grad or not scale.is_cpu:
        return None
    number = scale.item()
    if number**2 == 0:  # too narrow to divide by
        return None
    return loc.item(), number, scale if scale.requires_grad else None


def register_slopes(operator: Any) -> None:
    """Give an operator ``(loc, …, prior_loc, prior_scale, *options) -> (kl, *slopes)`` a gradient.

    The slopes are those of the arguments between ``loc`` and ``prior_loc``.
    """

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        count = len(output)
        ctx.save_for_backward(inputs[0], *inputs[count : count + 2], *output[1:])
        ctx.rest = len(inputs) - count

    def backward(ctx: Any, g: Tensor, *_: Tensor) -> Tensors:
        loc, prior_loc, prior_scale, *slopes = ctx.saved_tensors
        gloc = None if loc is None else (loc - prior_loc) * (g / prior_scale.square())
        return gloc, *(g * slope for slope in slopes), *(None,) * ctx.rest

    operator.register_autograd(backward, setup_context=save)


def in_memory_order(loc: Tensor) -> Tensor:
    """Return means in the order of memory, for a sum over all of them.

    Tables are stored as torch has them and seen as their transpose.
    """
    return loc.mT if loc.ndim == 2 and not loc.is_contiguous() else loc


def squares(w: Tensor, center: float = 0.0) -> float:
    """Return ``Σ (w − center)²``, summed in float64."""
    total = 0.0
    for block in w.reshape(-1).split(_BLOCK):
        d = block.double() - center if center else block.double()
        total += float(torch.dot(d, d))
    return total


def sum_of_logs(w: Tensor) -> float:
    """Return ``Σ log |w|``, summed in float64: one logarithm serves six numbers of float32."""
    total, flat = 0.0, w.reshape(-1)
    if w.dtype != torch.float32:
        return float(flat.abs().log().sum())
    for block in flat.split(_BLOCK):
        d, rest = block.abs().double(), len(block) % _TOGETHER
        total += float(d[rest:].view(_TOGETHER, -1).prod(0).log_().sum() + d[:rest].log().sum())
    return total


# ---- independent weights


class ScaledFromNormal(FromNormal):
    """Independent normal weights ``(loc, scale, prior)`` from one normal.

    With a ``log_unit``, ``scale`` has the logarithms of the standard deviations in that unit.
    """

    def value(
        self, loc: Tensor | None, scale: Tensor, prior: Tensor | None = None
    ) -> tuple[float, Tensors]:
        loc = None if loc is None else in_memory_order(loc)
        native, count = library(loc, scale), scale.numel()
        if native is not None:
            slope, totals = torch.empty_like(scale), torch.empty(2, dtype=torch.float64)
            rows = scale.shape[0]
            sizes = rows, count // max(rows, 1), *native_logs(self.log_unit), self.loc, self.scale
            tensors = map(pointer, (loc, scale, slope, totals))
            native.scale_kl(*tensors, *sizes, threads(count))
            square, logs = totals.tolist()
            return self.from_totals(square, logs, count), (slope,)
        scale = self._scale_of(scale)
        distance = count * self.loc**2 if loc is None else squares(loc, self.loc)
        return self.from_totals(squares(scale) + distance, sum_of_logs(scale), count), (None,)

    def slopes(self, tensors: Any, kept: Any, g: float, needed: Sequence[bool]) -> Tensors:
        (loc, stored, prior), (slope,), gscale = tensors, kept, None
        if needed[1]:
            if slope is None:
                scale = self._scale_of(stored)
                slope = scale.reciprocal().neg_().add_(scale, alpha=self.scale**-2)
                slope = slope if self.log_unit is None else slope.mul_(scale)
            gscale = slope * g
        gloc = self.slope_of_means(loc, g) if needed[0] else None
        return gloc, gscale, self.slope_of_prior(prior, stored.numel(), g)

    def plain(self, loc: Tensor | None, scale: Tensor, prior: Tensor | None = None) -> Tensor:
        return self.plain_kl(loc, self._scale_of(scale), prior)

    def _scale_of(self, stored: Tensor) -> Tensor:
        return stored if self.log_unit is None else (stored + self.log_unit).exp()


@kernel("kl", LocationScale, Normal)
def _scaled(q: LocationScale, p: Normal) -> KLTerm | None:
    numbers = numbers_of(p) if q.normal_marginals else None
    if numbers is None:
        return None
    loc, scale, learned = numbers
    return ScaledFromNormal((q.loc, q.given_scale, learned), loc, scale, q.log_unit)


@kernel("kl", LocationScale, Normal, mode=GRAPH)
def _graph_scaled(q: LocationScale, p: Normal) -> Tensor | None:
    if not q.normal_marginals or p.scale.ndim or p.loc.ndim or p.scale.requires_grad:
        return None
    return _scaled_op(q.loc, q.scale, p.loc, p.scale)[0]


@custom_op("leanbayes::scaled_kl", mutates_args=(), device_types="cpu")
def _scaled_op(
    loc: Tensor | None, scale: Tensor, prior_loc: Tensor, prior_scale: Tensor
) -> tuple[Tensor, Tensor]:
    term = ScaledFromNormal((), float(prior_loc), float(prior_scale))
    value, (slope,) = term.value(None if loc is None else loc.contiguous(), scale.contiguous())
    assert slope is not None
    return scale.new_tensor(value), slope


@_scaled_op.register_fake
def _(
    loc: Tensor | None, scale: Tensor, prior_loc: Tensor, prior_scale: Tensor
) -> tuple[Tensor, Tensor]:
    return scale.new_empty(()), torch.empty_like(scale, memory_format=torch.contiguous_format)


register_slopes(_scaled_op)


# ---- k-tied weights


class TiedFromNormal(FromNormal):
    """Independent normal weights with ``scale = uᵀ v``, ``(loc, u, v, prior)``, from one normal.

    With a ``log_unit``, ``u`` and ``v`` are logarithms of the factors in that unit.
    """

    def value(
        self, loc: Tensor, u: Tensor, v: Tensor, prior: Tensor | None = None
    ) -> tuple[float, Tensors]:
        loc, (rank, m), n = in_memory_order(loc), u.shape, v.shape[1]
        dense = loc, u.contiguous(), v.contiguous()
        native = library(*dense)
        if native is not None and rank <= LARGEST_RANK:
            gu, gv = u.new_empty(u.shape), v.new_empty(v.shape)
            totals = torch.empty(2, dtype=torch.float64)
            sizes = m, n, rank, *native_logs(self.log_unit), self.loc, self.scale, threads(m * n)
            native.k_tied_kl(*map(Tensor.data_ptr, (*dense, gu, gv, totals)), *sizes)
            square, logs = totals.tolist()
            return self.from_totals(square, logs, m * n), (gu, gv)
        u, v = factors_of(u, v, self.log_unit)
        logs, gu, gv, square = self._by_factors(u, v)
        if self.log_unit is not None:
            gu, gv = gu.mul_(u), gv.mul_(v)
        return self.from_totals(squares(loc, self.loc) + square, logs, m * n), (gu, gv)

    def _by_factors(self, u: Tensor, v: Tensor) -> tuple[float, Tensor, Tensor, float]:
        """Return ``Σ log σ``, the gradients of the KL by both factors, and ``Σ σ²``."""
        (rank, m), n = u.shape, v.shape[1]
        if rank == 1:  # the log of a product separates
            logs = n * sum_of_logs(u) + m * sum_of_logs(v)
            ru, rv = n / u, m / v
        else:
            scale = u.t() @ v
            logs = sum_of_logs(scale)
            inverse = scale.reciprocal_()
            ru, rv = (inverse @ v.t()).t(), u @ inverse
        of_u, of_v = (w @ w.t() for w in (u.double(), v.double()))
        precision = self.scale**-2
        gu = torch.addmm(ru, of_v.to(u.dtype), u, beta=-1, alpha=precision)
        gv = torch.addmm(rv, of_u.to(u.dtype), v, beta=-1, alpha=precision)
        return logs, gu, gv, float((of_u * of_v).sum())

    def slopes(self, tensors: Any, kept: Any, g: float, needed: Sequence[bool]) -> Tensors:
        (loc, _, _, prior), (gu, gv) = tensors, kept
        gloc = self.slope_of_means(loc, g) if needed[0] else None
        return gloc, gu * g, gv * g, self.slope_of_prior(prior, loc.numel(), g)

    def plain(self, loc: Tensor, u: Tensor, v: Tensor, prior: Tensor | None = None) -> Tensor:
        u, v = factors_of(u, v, self.log_unit)
        return self.plain_kl(loc, u.t() @ v, prior)


@kernel("kl", KTiedNormal, Normal)
def _tied(q: KTiedNormal, p: Normal) -> KLTerm | None:
    numbers = numbers_of(p)
    if numbers is None:
        return None
    loc, scale, learned = numbers
    return TiedFromNormal((q.loc, q.given_u, q.given_v, learned), loc, scale, q.log_unit)


@kernel("kl", KTiedNormal, Normal, mode=GRAPH)
def _graph_tied(q: KTiedNormal, p: Normal) -> Tensor | None:
    if q.rank > LARGEST_RANK or p.scale.ndim or p.loc.ndim or p.scale.requires_grad:
        return None
    return _tied_op(q.loc, q.given_u, q.given_v, p.loc, p.scale, q.log_unit)[0]


@custom_op("leanbayes::k_tied_kl", mutates_args=(), device_types="cpu")
def _tied_op(
    loc: Tensor,
    u: Tensor,
    v: Tensor,
    prior_loc: Tensor,
    prior_scale: Tensor,
    log_unit: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    term = TiedFromNormal((), float(prior_loc), float(prior_scale), log_unit)
    value, (gu, gv) = term.value(loc.contiguous(), u, v)
    assert gu is not None
    assert gv is not None
    return loc.new_tensor(value), gu, gv


@_tied_op.register_fake
def _(
    loc: Tensor,
    u: Tensor,
    v: Tensor,
    prior_loc: Tensor,
    prior_scale: Tensor,
    log_unit: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return loc.new_empty(()), u.new_empty(u.shape), v.new_empty(v.shape)


register_slopes(_tied_op)
