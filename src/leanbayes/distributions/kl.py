"""KL divergences from P + R definitions instead of a table of P × R pairs.

For a factorized prior, ``KL(q ‖ p) = −E_q log p − entropy(q)``. The first half depends on ``q``
only through its marginals, so it belongs to the prior (:func:`cross_entropy`); the second belongs
to the posterior. KLs are sums over weights, never averages.

There is one entry point, :func:`torch.distributions.kl_divergence`: what is defined here is
registered there, for all priors at once, and a pair that you register takes precedence.
"""

import math
from collections.abc import Iterable, Sequence
from functools import singledispatch
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.distributions import (
    Cauchy,
    Distribution,
    HalfCauchy,
    Laplace,
    LogNormal,
    Normal,
    constraints,
    register_kl,
)

from leanbayes.distributions import (
    CenteredNormal,
    FlatDensity,
    GroupRelevanceNormal,
    HierarchicalNormal,
    LocationScale,
    LogUniformDensity,
    LowRankProduct,
    Masked,
    NormalMixture,
    Rank1Mixture,
    RelevanceNormal,
    WeightDistribution,
)
from leanbayes.distributions.base import ENTROPY_OF_UNIT_NORMAL, STAND_INS, dispatch
from leanbayes.distributions.factored import RandomFactor
from leanbayes.distributions.priors import log_uniform_kl_approximate, log_uniform_kl_exact
from leanbayes.torch_private import kl_divergence, registered_kl

_PRIORS_OF_WEIGHTS = (
    CenteredNormal,
    HierarchicalNormal,
    RelevanceNormal,
    GroupRelevanceNormal,
    LogUniformDensity,
)
_BY_MOMENTS = (WeightDistribution.log_inverse_alpha, LocationScale.log_inverse_alpha)


@singledispatch
def cross_entropy(p: Distribution, q: WeightDistribution) -> Tensor:
    """Return ``−E_q log p`` of each weight ``[out, in]``; dispatches on the prior alone.

    The default is one Monte Carlo sample of ``q``, which is unbiased.
    """
    return -p.log_prob(q.rsample())


@cross_entropy.register
def _(p: Normal, q: WeightDistribution) -> Tensor:
    second = q.variance + (q.mean - p.loc).square()
    return 0.5 * second / p.scale.square() + p.scale.log() + 0.5 * math.log(2 * math.pi)


@cross_entropy.register
def _(p: CenteredNormal, q: WeightDistribution) -> Tensor:
    second = q.variance / p.scale.square()
    return 0.5 * second + p.scale.log() + 0.5 * math.log(2 * math.pi)


@cross_entropy.register
def _(p: HierarchicalNormal, q: WeightDistribution) -> Tensor:
    spread = q.variance / p.scale.square()
    distance = ((q.mean - p.loc) / p.mean_scale).square()
    return 0.5 * (spread + distance) + p.mean_scale.log() + 0.5 * math.log(2 * math.pi)


@cross_entropy.register
def _(p: GroupRelevanceNormal, q: WeightDistribution) -> Tensor:
    scale = p.scale.expand(q.event_shape)
    return cross_entropy(Normal(torch.zeros_like(scale), scale, validate_args=False), q)


@cross_entropy.register
def _(p: RelevanceNormal, q: WeightDistribution) -> Tensor:
    second = q.variance + q.mean.square()
    tiny = torch.finfo(second.dtype).tiny
    return 0.5 * (2 * math.pi * math.e * second).clamp_min(tiny).log()


@cross_entropy.register
def _(p: Laplace, q: WeightDistribution) -> Tensor:
    """``E|w|`` of a normal weight has a closed form."""
    if not q.normal_marginals:
        return -p.log_prob(q.rsample())
    std = q.variance.sqrt()
    z = (q.mean - p.loc) / std
    spread = std * math.sqrt(2 / math.pi) * (-0.5 * z.square()).exp()
    distance = spread + (q.mean - p.loc) * torch.erf(z / math.sqrt(2))
    return distance / p.scale + (2 * p.scale).log()


def _scale_free(q: WeightDistribution, p: LogUniformDensity | RelevanceNormal) -> Tensor:
    """Return the KL of each normal weight where it depends on ``mean² / variance`` alone.

    It is exact where cross-entropy and entropy are both infinite (a dropout weight at zero).
    """
    if isinstance(p, RelevanceNormal):
        if has_moments_alone(q):
            return 0.5 * (q.mean.square() / q.variance).log1p()
        return 0.5 * torch.nn.functional.softplus(q.log_inverse_alpha())
    m = q.log_inverse_alpha()
    return log_uniform_kl_exact(m) if p.exact else log_uniform_kl_approximate(m)


def has_moments_alone(q: WeightDistribution) -> bool:
    """Return whether the squared mean over the variance has no separate formula."""
    known = getattr(q, "log_alpha", None) is not None
    return type(q).log_inverse_alpha in _BY_MOMENTS and not known


def _kl_per_weight(q: WeightDistribution, p: Distribution) -> Tensor:
    """Return the KL of each of independent weights ``[out, in]``."""
    if isinstance(p, LogUniformDensity | RelevanceNormal) and q.normal_marginals:
        return _scale_free(q, p)
    if isinstance(p, Normal):  # what cancels is subtracted first: no digit of a small KL is lost
        second = (q.variance + (q.mean - p.loc).square()) / p.scale.square()
        return 0.5 * (second - 1) - (q.entropies() - (p.scale.log() + ENTROPY_OF_UNIT_NORMAL))
    return cross_entropy(p, q) - q.entropies()


def divergence(q: Distribution, p: Distribution) -> Tensor:
    """Return ``KL(q ‖ p)`` as :func:`torch.distributions.kl_divergence` gives it."""
    return kl_divergence(q, p)


class Term(Protocol):
    """One KL of a sum that is computed together."""

    def total(self, others: Sequence[Self]) -> Tensor:
        """Return the sum of this KL and of others."""


def total_divergence(pairs: Iterable[tuple[WeightDistribution, Distribution]]) -> Tensor:
    """Return ``Σ KL(q ‖ p)``; terms that can be computed together are one node of the graph."""
    terms: list[Term] = []
    totals: list[Tensor] = []
    for q, p in pairs:
        is_ours = registered_kl(type(q), type(p)) is _kl_of_weights
        stand_in = STAND_INS.get(("kl", type(q), type(p))) if is_ours else None
        found: Term | Tensor | None = None if stand_in is None else stand_in(q, p)
        if found is None:
            totals.append(divergence(q, p))
        elif isinstance(found, Tensor):
            totals.append(found)
        else:
            terms.append(found)
    if terms:
        totals.append(terms[0].total(terms[1:]))
    return totals[0] if len(totals) == 1 else torch.stack(totals).sum()


@register_kl(WeightDistribution, Distribution)
def _kl_of_weights(q: WeightDistribution, p: Distribution) -> Tensor:
    found: Term | Tensor | None = dispatch("kl", q, p)
    if found is not None:
        return found if isinstance(found, Tensor) else found.total([])
    _require_finite(q, p)
    if isinstance(p, FlatDensity):
        return q.variance.new_zeros(())
    if isinstance(p, LogUniformDensity | RelevanceNormal) and q.normal_marginals:
        if isinstance(q, LocationScale) and q.loc is None:
            return 0.0 * q.scale.sum()  # no scale of zero-mean weights costs anything
        return _scale_free(q, p).sum() + q.total_correlation()
    if isinstance(p, Normal) and q.independent:
        return _kl_per_weight(q, p).sum()
    return _total_cross_entropy(p, q) - q.entropy()


def _total_cross_entropy(p: Distribution, q: WeightDistribution) -> Tensor:
    """Return the sum of :func:`cross_entropy`; one normal for all weights needs only two sums."""
    if isinstance(p, HierarchicalNormal) and p.scale.ndim == 0:
        distance = ((q.mean - p.loc) / p.mean_scale).square().sum()
        constant = q.mean.numel() * (p.mean_scale.log() + 0.5 * math.log(2 * math.pi))
        return 0.5 * (q.total_variance() / p.scale.square() + distance) + constant
    if not (isinstance(p, Normal) and p.scale.ndim == 0):
        return cross_entropy(p, q).sum()
    distance = q.total_variance() + (q.mean - p.loc).square().sum()
    constant = q.mean.numel() * (p.scale.log() + 0.5 * math.log(2 * math.pi))
    return 0.5 * distance / p.scale.square() + constant


@register_kl(Masked, Distribution)
def _kl_of_kept_weights(q: Masked, p: Distribution) -> Tensor:
    """Over the kept weights; for correlated ones a bound from above.

    It is the base's KL, ``Σ KL(marginal ‖ p) + total correlation``, without the masked terms of the
    sum. A KL that is registered for the base is one number and does not know single weights: where
    they are independent, register one for :class:`Masked` too.
    """
    if isinstance(p, FlatDensity):
        return divergence(q.base, p)
    kept = q.mask.bool()
    if q.independent:
        _require_finite(q, p)
        return torch.where(kept, _kl_per_weight(_without_zero_scales(q), p), 0.0).sum()
    total = divergence(q.base, p)
    if not q.normal_marginals:
        return total
    marginals = LocationScale(q.base.mean, q.base.variance.sqrt(), validate_args=False)
    return total - torch.where(kept, 0.0, _kl_per_weight(marginals, p)).sum()


def _without_zero_scales(q: Masked) -> WeightDistribution:
    """The base, with other scales where it is masked: the slope at a scale of zero is infinite."""
    base = q.base
    if type(base) is not LocationScale:
        return base
    scale = torch.where(q.mask.bool(), base.scale, 1.0)
    noise, known = base.noise, base.log_alpha
    return LocationScale(base.loc, scale, noise, log_alpha=known, validate_args=False)


@register_kl(Rank1Mixture, Distribution)
def _kl_of_factors(q: Rank1Mixture, p: Distribution) -> Tensor:
    """Return the KL of the factors, ``p`` being the prior of each of them [rank-1, eq. 2].

    The mean over members bounds the KL of the mixture from above, by convexity.
    """
    _require_finite(q, p)
    total = q.weight.new_zeros(())
    if not isinstance(p, FlatDensity):
        for factor in q.factors:
            total = total + _factor_kl(factor, p).sum()
    if q.mean_kl:
        total = total / q.members
    if q.weight_scale is None:
        return total
    penalty = 0.5 * (q.weight / q.weight_scale).square()
    return total + (penalty + math.log(q.weight_scale) + 0.5 * math.log(2 * math.pi)).sum()


@register_kl(LowRankProduct, Distribution)
def _kl_of_product(q: LowRankProduct, p: Distribution) -> Tensor:
    """Return the KL of both factors, ``p`` being the prior of each of their entries."""
    _require_finite(q, p)
    return divergence(q.left, p) + divergence(q.right, p)


def _factor_kl(factor: RandomFactor, p: Distribution) -> Tensor:
    """Return the KL of each factor: as registered, else by one sample."""
    if isinstance(factor, Tensor):
        return -p.log_prob(factor)
    try:
        return divergence(factor, p)
    except NotImplementedError:
        z = factor.rsample()
        return factor.log_prob(z) - p.log_prob(z)


@register_kl(LogNormal, LogNormal)
def _kl_log_normal(q: LogNormal, p: LogNormal) -> Tensor:
    """That of the normals: a one-to-one function changes no KL."""
    return divergence(q.base_dist, p.base_dist)


@register_kl(HalfCauchy, HalfCauchy)
def _kl_half_cauchy(q: HalfCauchy, p: HalfCauchy) -> Tensor:
    """Return ``log [(γ₀ + γ₁)² / (4 γ₀ γ₁)]``."""
    return 2 * (q.scale + p.scale).log() - (4 * q.scale * p.scale).log()


def check_pair(q: WeightDistribution, p: Distribution) -> None:
    """Raise a sentence if ``KL(q ‖ p)`` does not exist or has no meaning.

    A pair that a user registered is theirs to judge.
    """
    ours = (_kl_of_weights, _kl_of_kept_weights, _kl_of_factors, _kl_of_product)
    if registered_kl(type(q), type(p)) in ours:
        _require_finite(q, p)


def _require_finite(q: WeightDistribution, p: Distribution) -> None:
    if isinstance(p, FlatDensity):
        return
    if q.discrete:
        raise ValueError(
            "a discrete posterior has no density, so its KL from a prior with one is infinite; "
            "use prior=lb.priors.Flat(), or noise='normal' or 'uniform'"
        )
    factors = q.factors if isinstance(q, Rank1Mixture) else ()
    if isinstance(q, Rank1Mixture | LowRankProduct) and isinstance(p, _PRIORS_OF_WEIGHTS):
        rank_one = isinstance(q, Rank1Mixture)
        kind, prior = ("rank-one", "0.1, loc=1.0") if rank_one else ("low-rank", "0.3")
        raise ValueError(
            f"{type(p).__name__} is a prior of weights, and a {kind} posterior compares its "
            f"factors with the prior; use for example prior=lb.priors.Normal({prior})"
        )
    heavy = any(isinstance(f, Cauchy | HalfCauchy) for f in factors)
    if heavy and isinstance(p, Normal | Laplace | NormalMixture):
        raise ValueError(
            f"Cauchy factors have heavier tails than {type(p).__name__}, so their KL is infinite; "
            "use prior=lb.priors.Cauchy(0.1, loc=1.0), lb.priors.HalfCauchy(0.1) or "
            "lb.priors.StudentT(3.0)"
        )
    if _is_positive(p) and not (factors and all(map(_is_positive, factors))):
        raise ValueError(
            f"{type(p).__name__} gives no mass to negative values and the posterior does, so their "
            "KL is infinite; use a prior on the whole line, or Rank1(factors='lognormal')"
        )


def _is_positive(law: RandomFactor) -> bool:
    positive = (constraints.positive, constraints.nonnegative)
    return isinstance(law, Distribution) and law.support in positive
