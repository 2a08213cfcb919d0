"""Priors that torch lacks. A prior is factorized over weights and only ever compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import Distribution, Normal, constraints

from leanbayes.distributions.base import WeightDistribution
from leanbayes.distributions.independent import Masked
from leanbayes.errors import require


class _Prior(Distribution):
    """A prior over single weights; an improper one cannot be sampled."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (torch's own protocol)

    def __init__(self, shape: Sequence[int] = ()) -> None:
        super().__init__(torch.Size(shape), validate_args=False)

    @property
    def support(self) -> Any:
        return constraints.real


class FlatDensity(_Prior):
    """No prior at all: every KL from it is zero by definition."""

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.zeros_like(value)


class LogUniformDensity(_Prior):
    """The improper prior ``p(w) ∝ 1/|w|`` [variance, eq. 6–8].

    Its constant is chosen so that the KL of a zero-mean normal is zero, for any variance.

    Args:
        exact: use the exact series instead of the published approximation (a few hundred passes).
    """

    #: ``E log|w| − entropy`` of a zero-mean normal: −½ log 2πe − ½ (γ + log 2) [variance, app. F].
    CONSTANT = -0.5 * math.log(2 * math.pi * math.e) - 0.5 * (0.5772156649015329 + math.log(2))

    def __init__(self, *, exact: bool = False) -> None:
        self.exact = exact
        super().__init__()

    def log_prob(self, value: Tensor) -> Tensor:
        return self.CONSTANT - value.abs().log()


class RelevanceNormal(_Prior):
    """Automatic relevance determination: ``N(0, λ²)`` with its own optimal ``λ² = E[w²]`` a weight.

    The KL of a normal weight is ``½ log(1 + μ²/σ²)`` [variance, eq. 11 with its factor ½; matrix
    normal, section 3.1]. There is no density without a posterior to be relevant to.
    """


class CenteredNormal(_Prior):
    """``N(E w, scale²)``: a normal around the mean of the weight it is compared with.

    It judges the spread of a weight and not its mean, so it has no density without a posterior.
    """

    def __init__(self, scale: Tensor) -> None:
        self.scale = scale
        super().__init__()


class HierarchicalNormal(_Prior):
    """``w ~ N(m, scale²)`` around a mean ``m ~ N(loc, spread²)``, which is inferred too.

    With the best normal ``q(m)`` put in, the KL of a weight ``N(μ, σ²)`` is

        log(scale/σ) + σ²/(2 scale²) − ½ + (μ − loc)²/(2 (scale² + spread²))
        + ½ log(1 + spread²/scale²)

    so ``scale`` regularizes the noise of a weight, and the wider of the two its mean. The ELBO
    stays a bound (after Tomczak, Swaroop, Foong and Turner 2021). It has no density without a
    posterior.

    Args:
        scale: the standard deviation of a weight around its mean.
        spread: the standard deviation of the means.
        loc: the mean of the means.
    """

    def __init__(self, scale: Tensor, spread: Tensor, loc: Tensor | float = 0.0) -> None:
        self.scale, self.spread, self.loc = scale, spread, loc
        super().__init__()

    @property
    def mean_scale(self) -> Tensor:
        """The standard deviation that means are judged by."""
        return torch.hypot(self.scale, self.spread)


class GroupRelevanceNormal(_Prior):
    """``N(0, 1/(τ_i γ_j))``: one relevance per row and one per column [matrix normal, section 3.2].

    Args:
        row_precision: ``τ [out]``; ``None`` for 1.
        column_precision: ``γ [in]``; ``None`` for 1.
    """

    def __init__(
        self, row_precision: Tensor | None = None, column_precision: Tensor | None = None
    ) -> None:
        require(
            row_precision is not None or column_precision is not None,
            "group relevances belong to rows, to columns or to both; give one of them",
        )
        self.row_precision = row_precision
        self.column_precision = column_precision
        super().__init__([1 if t is None else len(t) for t in (row_precision, column_precision)])

    @property
    def scale(self) -> Tensor:
        """The prior standard deviations, ``[out, in]`` or what broadcasts to it."""
        if self.row_precision is None:
            assert self.column_precision is not None
            return self.column_precision.rsqrt().unsqueeze(0)
        rows = self.row_precision.rsqrt().unsqueeze(1)
        return rows if self.column_precision is None else rows * self.column_precision.rsqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        return Normal(0.0, self.scale, validate_args=False).log_prob(value)

    def updated(self, q: WeightDistribution) -> GroupRelevanceNormal:
        """Return one round of the block updates: each group's optimum given the others.

        ``τ_i = in / Σ_j γ_j E[w_ij²]``, then ``γ_j = out / Σ_i τ_i E[w_ij²]``, where ``in`` and
        ``out`` count the weights that are not masked; a group without any stays as it is. Where
        only rows or only columns have relevances, one round is the optimum.
        """
        second = q.variance + q.mean.square()
        kept = q.mask.to(second) if isinstance(q, Masked) else torch.ones_like(second)
        tau, gamma = self.row_precision, self.column_precision
        if tau is not None:
            sizes = second.sum(1) if gamma is None else second @ gamma
            tau = _optimum(kept.sum(1), sizes, tau)
        if gamma is not None:
            sizes = second.sum(0) if tau is None else tau @ second
            gamma = _optimum(kept.sum(0), sizes, gamma)
        return GroupRelevanceNormal(tau, gamma)


def _optimum(count: Tensor, sizes: Tensor, before: Tensor) -> Tensor:
    """The best precision of groups of so many weights, or the one before of an empty group."""
    return torch.where(count > 0, count / sizes, before)


class NormalMixture(_Prior):
    """A wide and a narrow zero-mean normal: ``π N(0, wide²) + (1 − π) N(0, narrow²)``."""

    def __init__(self, weight: float, wide: Tensor, narrow: Tensor) -> None:
        self.weight = weight
        self.wide = wide
        self.narrow = narrow
        super().__init__()

    def log_prob(self, value: Tensor) -> Tensor:
        wide = Normal(0.0, self.wide, validate_args=False).log_prob(value)
        narrow = Normal(0.0, self.narrow, validate_args=False).log_prob(value)
        return torch.logaddexp(wide + math.log(self.weight), narrow + math.log1p(-self.weight))


_K1, _K2, _K3 = 0.63576, 1.87320, 1.48695
_DIGAMMA_HALF = -0.5772156649015329 - 2 * math.log(2)
_ASYMPTOTIC_FROM = 64.0
_ASYMPTOTIC_TERMS = 13
_TERMS = 180  # Poisson(64) has less than 1e-16 of its mass above


def log_uniform_kl_approximate(m: Tensor) -> Tensor:
    """Approximate by ``½ log(1 + α⁻¹) + k₁ (1 − sigmoid(k₂ + k₃ log α))`` [variance, eq. 8]."""
    return 0.5 * F.softplus(m) + _K1 * torch.sigmoid(_K3 * m - _K2)


def log_uniform_kl_exact(m: Tensor) -> Tensor:
    """Return ``½ Σ_k Pois(k; u) [ψ(k + ½) − ψ(½)]`` with ``u = 1 / (2α)``."""
    return _Exact.apply(m)  # type: ignore[no-untyped-call]


class _Exact(torch.autograd.Function):
    """Sums the series and its derivative ``½ Σ_k Pois(k; u) / (k + ½)`` in one loop, no tape."""

    @staticmethod
    def forward(ctx: Any, m: Tensor) -> Tensor:
        log_u = m - math.log(2)
        small = log_u.clamp_max(math.log(_ASYMPTOTIC_FROM))
        u = small.exp()
        value, slope = torch.zeros_like(m), torch.zeros_like(m)
        digamma = 0.0  # ψ(k + ½) − ψ(½)
        for k in range(_TERMS):
            pmf = (k * small - u - math.lgamma(k + 1)).exp()
            value += 0.5 * digamma * pmf
            slope += 0.5 / (k + 0.5) * pmf
            digamma += 1 / (k + 0.5)
        large = log_u > math.log(_ASYMPTOTIC_FROM)
        v = (-log_u.clamp_min(math.log(_ASYMPTOTIC_FROM))).exp()  # 1/u
        tail, tail_slope = 0.5 * (log_u - _DIGAMMA_HALF), torch.full_like(m, 0.5)
        term = torch.full_like(m, 0.5)
        for n in range(1, _ASYMPTOTIC_TERMS):
            term = term * (n - 0.5) * v
            tail = tail - term / n
            tail_slope = tail_slope + term
        ctx.save_for_backward(torch.where(large, tail_slope, slope * u))
        return torch.where(large, tail, value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope
