"""KL from one normal for all weights: the value and its gradient from one pass.

A model asks for all of its matrices at once (:func:`fused_kl`), so that its KL is one node of the
graph and not one for each layer: at small batches nodes cost more than arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, pairwise
from operator import add
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from leanbayes.kernels.fused import Fused, fusible, in_full_precision, twice_differentiable
from leanbayes.kernels.native import LARGEST_RANK, as_rows, library, pointer, threads

__all__ = [
    "Divergence",
    "KLTerm",
    "ScaledFromNormal",
    "TiedFromNormal",
    "fused_kl",
    "k_tied_kl",
    "no_force",
    "relevance_kl",
    "scaled_kl",
]

Tensors = tuple[Tensor | None, ...]

_TOGETHER = 8
"""How many numbers are multiplied before a logarithm is taken."""


class Divergence(Protocol):
    """The KL of a matrix that ``arity`` tensors describe."""

    arity: ClassVar[int]

    def value(self, *tensors: Any) -> tuple[float | Tensor, Tensors]:
        """The KL, and what :meth:`slopes` is to be given."""

    def slopes(self, tensors: Any, kept: Any, g: float, needed: Sequence[bool]) -> Tensors:
        """``g`` times the gradient by each tensor, where it is needed."""

    def plain(self, *tensors: Any) -> Tensor:
        """The KL but for a constant, as torch can derive it twice."""


class KLTerm(NamedTuple):
    """The KL of one matrix: what it is, and of which tensors."""

    divergence: Divergence
    tensors: Tensors


def fused_kl(terms: Sequence[KLTerm]) -> Tensor:
    """The sum of the KLs of many matrices, as one function.

    Example:
        >>> free = KLTerm(ScaledFromNormal(0.0, 1.0), (torch.ones(2, 3), torch.ones(2, 3), None))
        >>> float(fused_kl([free, free]))
        6.0
    """
    tensors = [tensor for term in terms for tensor in term.tensors]
    divergences = [term.divergence for term in terms]
    return _FusedKL.apply(*tensors, divergences)


def scaled_kl(
    loc: Tensor | None, scale: Tensor, prior_loc: float, prior_scale: float | Tensor
) -> Tensor:
    """``KL(N(loc, scale²) ‖ N(prior_loc, prior_scale²))``, summed over weights.

    Args:
        loc: means ``[out, in]``; ``None`` for zero.
        scale: standard deviations ``[out, in]``.
        prior_loc: the mean of the prior.
        prior_scale: its standard deviation; a tensor if it is learnt.

    Example:
        >>> float(scaled_kl(torch.ones(2, 3), torch.ones(2, 3), 0.0, 1.0))
        3.0
    """
    number, learnt = _learnt(prior_scale)
    return fused_kl([KLTerm(ScaledFromNormal(prior_loc, number), (loc, scale, learnt))])


def k_tied_kl(
    loc: Tensor,
    u: Tensor,
    v: Tensor,
    prior_loc: float,
    prior_scale: float | Tensor,
    logs: bool = False,
) -> Tensor:
    """The same for ``scale = uᵀ v``, or for logarithms of ``u`` and ``v``.

    Example:
        >>> float(k_tied_kl(torch.ones(2, 3), torch.ones(1, 2), torch.ones(1, 3), 0.0, 1.0))
        3.0
    """
    number, learnt = _learnt(prior_scale)
    return fused_kl([KLTerm(TiedFromNormal(prior_loc, number, logs), (loc, u, v, learnt))])


def _learnt(scale: float | Tensor) -> tuple[float, Tensor | None]:
    """A standard deviation as a number, and the tensor that learns it."""
    if isinstance(scale, Tensor):
        return scale.item(), scale if scale.requires_grad else None
    return scale, None


def relevance_kl(mean: Tensor, variance: Tensor) -> Tensor:
    """``½ Σ log(1 + mean² / variance)``: the KL of normal weights from their own best priors.

    Example:
        >>> round(float(relevance_kl(torch.ones(2, 3), torch.ones(2, 3)) / math.log(2)), 4)
        3.0
    """
    if mean.shape != variance.shape or not fusible(mean, variance):
        return _FromRelevance().plain(mean, variance)
    return fused_kl([KLTerm(_FromRelevance(), (mean, variance))])


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
    return _NoForce.apply(scale)


class _NoForce(Fused):
    @staticmethod
    def forward(ctx: Any, scale: Tensor) -> Tensor:
        return scale.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        """No gradient, rather than a matrix of zeros that would be added to another one."""


class _FusedKL(Fused):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *tensors, ctx.divergences = given
        values, kept = [], []
        for divergence, own in zip(ctx.divergences, _shares(ctx.divergences, tensors), strict=True):
            value, needed = divergence.value(*own)
            values.append(value)
            kept.append(needed)
        ctx.ends = list(accumulate(map(len, kept), initial=len(tensors)))
        ctx.save_for_backward(*tensors, *(tensor for own in kept for tensor in own))
        total = reduce(add, values)
        return total if isinstance(total, Tensor) else torch.tensor(total, dtype=torch.float32)

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> Tensors:
        saved, divergences = ctx.saved_tensors, ctx.divergences
        tensors = saved[: ctx.ends[0]]
        if torch.is_grad_enabled():

            def plain(*tensors: Tensor | None) -> Tensor:
                shares = _shares(divergences, tensors)
                each = [d.plain(*own) for d, own in zip(divergences, shares, strict=True)]
                return sum(each[1:], each[0])

            return twice_differentiable(plain, tensors, ctx, grads[0])
        kept = [saved[start:end] for start, end in pairwise(ctx.ends)]
        shares, needed = (_shares(divergences, t) for t in (tensors, ctx.needs_input_grad))
        g, slopes = float(grads[0]), []
        for divergence, *own in zip(divergences, shares, kept, needed, strict=True):
            slopes += divergence.slopes(*own[:2], g, own[2])
        return *slopes, None


def _shares(divergences: Sequence[Divergence], things: Sequence[Any]) -> list[Sequence[Any]]:
    """For each KL its own part of things that come in the order of all tensors."""
    ends = accumulate((divergence.arity for divergence in divergences), initial=0)
    return [things[start:end] for start, end in pairwise(ends)]


def _squares(w: Tensor, center: float) -> Tensor:
    """``Σ (w − center)²``."""
    flat = (w - center if center else w).reshape(-1)
    return torch.dot(flat, flat)


def _sum_of_logs(w: Tensor) -> Tensor:
    """``Σ log |w|``: of products of eight numbers, which cost less than eight logarithms.

    Numbers so small or large that a product could leave the range are taken one by one.
    """
    flat = w.reshape(-1)
    if not flat.is_cpu or flat.numel() < _TOGETHER:
        return flat.abs().log_().sum()
    limits = torch.finfo(w.dtype)
    low, high = map(float, flat.aminmax())
    if not limits.tiny ** (1 / _TOGETHER) < low <= high < limits.max ** (1 / _TOGETHER):
        return flat.abs().log_().sum()
    rest = flat.numel() % _TOGETHER
    whole = flat[rest:].view(_TOGETHER, -1).prod(0).log_().sum()
    return whole.add_(flat[:rest].log().sum()) if rest else whole


def _slope_of_means(loc: Tensor, center: float, factor: float) -> Tensor:
    return (loc - center).mul_(factor) if center else loc * factor


def _kl(square: Tensor, logs: Tensor, count: int, scale: float) -> Tensor:
    """From ``Σ E(w − loc)²`` and ``Σ log σ``, for the standard deviation of the prior."""
    constant = count * (math.log(scale) - 0.5)
    return (square * (0.5 * scale**-2)).sub_(logs).add_(constant)


def _slope_of_prior(square: Tensor | None, count: int, scale: float, g: float) -> Tensor | None:
    """That of the prior's standard deviation, if it is learnt."""
    return None if square is None else (square * -(scale**-3)).add_(count / scale).mul_(g)


def _plain_kl(square: Tensor, logs: Tensor, count: int, scale: Tensor | float) -> Tensor:
    """The same as torch derives it twice; what does not change is left out."""
    total = 0.5 * square / scale**2 - logs
    return total + count * scale.log() if isinstance(scale, Tensor) else total


@dataclass(frozen=True)
class ScaledFromNormal:
    """Of independent normal weights, ``(loc, scale, prior)``, from one normal.

    ``loc`` may be missing; ``prior`` is the standard deviation of the normal if it is learnt.
    """

    arity: ClassVar[int] = 3
    loc: float
    scale: float

    def value(
        self, loc: Tensor | None, scale: Tensor, prior: Tensor | None = None
    ) -> tuple[float | Tensor, Tensors]:
        native, count = library(loc, scale), scale.numel()
        if native is not None:
            slope, square = torch.empty_like(scale), _room(prior)
            tensors, rows = map(pointer, (loc, scale, slope, square)), scale.shape[0]
            sizes = rows, count // max(rows, 1), self.loc, self.scale
            return native.scale_kl(*tensors, *sizes, threads(count)), (slope, square)
        square = _squares(scale, 0.0)
        square = square + (count * self.loc**2 if loc is None else _squares(loc, self.loc))
        total = _kl(square, _sum_of_logs(scale), count, self.scale)
        return total, (None, None if prior is None else square)

    def slopes(self, tensors: Any, kept: Any, g: float, needed: Sequence[bool]) -> Tensors:
        (loc, scale, _), (slope, square) = tensors, kept
        precision, gloc, gscale = self.scale**-2, None, None
        if needed[1]:
            if slope is None:
                slope = scale.reciprocal().neg_().add_(scale, alpha=precision)
            gscale = slope * g
        if needed[0] and loc is not None:
            gloc = _slope_of_means(loc, self.loc, g * precision)
        return gloc, gscale, _slope_of_prior(square, scale.numel(), self.scale, g)

    def plain(self, loc: Tensor | None, scale: Tensor, prior: Tensor | None = None) -> Tensor:
        distance = scale.numel() * self.loc**2 if loc is None else _squares(loc, self.loc)
        square, logs = scale.square().sum() + distance, scale.abs().log().sum()
        return _plain_kl(square, logs, scale.numel(), self.scale if prior is None else prior)


@dataclass(frozen=True)
class TiedFromNormal:
    """Of independent normal weights with ``scale = uᵀ v``, ``(loc, u, v, prior)``, from one normal.

    ``logs`` says that ``u`` and ``v`` are logarithms of the factors; ``prior`` is the standard
    deviation of the normal if it is learnt.
    """

    arity: ClassVar[int] = 4
    loc: float
    scale: float
    logs: bool = False

    def value(
        self, loc: Tensor, u: Tensor, v: Tensor, prior: Tensor | None = None
    ) -> tuple[float | Tensor, Tensors]:
        dense = loc, u.contiguous(), v.contiguous()
        (rank, m), n = u.shape, v.shape[1]
        native = library(*dense)
        if native is not None and rank <= LARGEST_RANK:
            gu, gv, square = u.new_empty(u.shape), v.new_empty(v.shape), _room(prior)
            tensors = map(pointer, (*dense, gu, gv, square))
            sizes = m, n, rank, self.logs, self.loc, self.scale
            return native.k_tied_kl(*tensors, *sizes, threads(m * n)), (gu, gv, square)
        u, v = (u.exp(), v.exp()) if self.logs else (u, v)
        logs, gu, gv, squares = self._by_factors(u, v)
        square = _squares(loc, self.loc) + squares
        if self.logs:
            gu, gv = gu.mul_(u), gv.mul_(v)
        total = _kl(square, logs, m * n, self.scale)
        return total, (gu, gv, None if prior is None else square)

    def _by_factors(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``Σ log σ``, the gradients of the KL by both factors, and ``Σ σ²``."""
        (rank, m), n = u.shape, v.shape[1]
        if rank == 1:  # the log of a product separates
            logs = n * u.log().sum() + m * v.log().sum()
            ru, rv = n / u, m / v
        else:
            scale = u.t() @ v
            logs = _sum_of_logs(scale)
            inverse = scale.reciprocal_()
            ru, rv = (inverse @ v.t()).t(), u @ inverse
        of_u, of_v, precision = u @ u.t(), v @ v.t(), self.scale**-2
        gu = torch.addmm(ru, of_v, u, beta=-1, alpha=precision)
        gv = torch.addmm(rv, of_u, v, beta=-1, alpha=precision)
        return logs, gu, gv, torch.dot(of_u.view(-1), of_v.view(-1))

    def slopes(self, tensors: Any, kept: Any, g: float, needed: Sequence[bool]) -> Tensors:
        loc, (gu, gv, square) = tensors[0], kept
        gloc = _slope_of_means(loc, self.loc, g * self.scale**-2) if needed[0] else None
        return gloc, gu * g, gv * g, _slope_of_prior(square, loc.numel(), self.scale, g)

    def plain(self, loc: Tensor, u: Tensor, v: Tensor, prior: Tensor | None = None) -> Tensor:
        scale = u.exp().t() @ v.exp() if self.logs else u.t() @ v
        square = _squares(loc, self.loc) + scale.square().sum()
        own = self.scale if prior is None else prior
        return _plain_kl(square, scale.log().sum(), loc.numel(), own)


def _room(prior: Tensor | None) -> Tensor | None:
    """A number for what a learnt prior needs to know."""
    return None if prior is None else torch.empty((), dtype=torch.float64)


@dataclass(frozen=True)
class _FromRelevance:
    """Of normal weights, ``(mean, variance)``, from the normal that fits each of them best."""

    arity: ClassVar[int] = 2

    def value(self, mean: Tensor, variance: Tensor) -> tuple[float | Tensor, Tensors]:
        native = library(mean, variance)
        if native is None:
            return self.plain(mean, variance), ()
        tensors = map(pointer, (mean, variance))
        return native.relevance_kl(*tensors, *as_rows(mean), threads(mean.numel())), ()

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
