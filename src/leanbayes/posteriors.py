"""Posterior recipes: each turns a weight into a learned distribution over its matrix.

A new posterior is one distribution, one recipe here and one entry in ``POSTERIORS``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Cauchy, HalfCauchy, LogNormal, Normal

from leanbayes.distributions import (
    Delta,
    DiagonalLowRank,
    Factor,
    KroneckerNormal,
    KTiedNormal,
    LocationScale,
    Rank1Mixture,
    Triangular,
    WeightDistribution,
)
from leanbayes.distributions.rank1 import RandomFactor
from leanbayes.errors import require, require_choice, require_count, require_positive
from leanbayes.learned import Learned, Role
from leanbayes.ops import LinearOp
from leanbayes.scales import Scale
from leanbayes.spec import Spec

__all__ = [
    "POSTERIORS",
    "Dropout",
    "KTied",
    "MatrixNormal",
    "MeanField",
    "Point",
    "Posterior",
    "Rank1",
    "ZeroMean",
]

_MEAN_FIELD_SCALE = Scale(0.01, spread=0.001)
_TIED_SCALE = Scale(0.01, raw_spread=0.1)
_VARIANCE_LAYER_SCALE = Scale("fan_in", stored="signed")


@dataclass(frozen=True)
class Posterior(Spec):
    """A recipe for the distribution of one weight matrix."""

    @abstractmethod
    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        """Make the learned posterior of a weight given in torch's own shape."""

    def _learn(
        self,
        constructor: Callable[..., WeightDistribution],
        op: LinearOp,
        transforms: dict[str, Callable[[Tensor], Tensor]] | None = None,
        **tensors: Tensor,
    ) -> Learned[WeightDistribution]:
        """Means and weights are stored in torch's own shape and seen as matrices."""
        seen = dict(transforms or {})
        roles: dict[str, Role] = {}
        for name in tensors:
            if name in ("loc", "weight"):
                seen[name], roles[name] = op.matrix, "means"
            elif name.endswith("_loc"):
                roles[name] = "factors"
        return Learned(
            partial(constructor, validate_args=False),
            spec=self,
            transforms=seen,
            roles=roles,
            **tensors,
        )


@dataclass(frozen=True)
class Point(Posterior):
    """A point estimate; with a prior it is maximum a posteriori."""

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        return self._learn(Delta, op, loc=weight.detach().clone())


@dataclass(frozen=True)
class MeanField(Posterior):
    """Independent normal weights, each with its own mean and standard deviation.

    Args:
        scale: where the standard deviations start, or a :class:`Scale` to say how they are stored.
    """

    scale: float | Scale = _MEAN_FIELD_SCALE

    def __post_init__(self) -> None:
        Scale.of(self.scale)

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        scale = Scale.of(self.scale)
        raw = scale.initial(op.matrix(weight).shape, weight)
        return self._learn(
            LocationScale,
            op,
            {"scale": scale.transform},
            loc=weight.detach().clone(),
            scale=raw,
        )


@dataclass(frozen=True)
class KTied(Posterior):
    """Independent normal weights with standard deviations ``U Vᵀ`` of rank ``rank`` [k-tied, eq.
    3].

    The factors start at ``√(scale / rank)``, so that the standard deviations start at ``scale``
    whatever the rank; by default with the published jitter of 0.1 on their logs [k-tied, appendix
    E].

    Args:
        rank: the number of rank-one terms ``k``.
        scale: where the standard deviations start, or a :class:`Scale` for the factors' storage.
    """

    rank: int = 2
    scale: float | Scale = _TIED_SCALE

    def __post_init__(self) -> None:
        require_count("rank", self.rank, 1)
        scale = Scale.of(self.scale)
        require(scale.ceiling is None, "tied factors have no ceiling; use MeanField for one")
        require(scale.start != "fan_in", "tied factors start at a number, not at 'fan_in'")

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        scale = Scale.of(self.scale)
        assert not isinstance(scale.start, str)
        factor = Scale(
            math.sqrt(scale.start / self.rank), scale.spread, scale.raw_spread, scale.stored
        )
        rows, columns = op.matrix(weight).shape
        return self._learn(
            KTiedNormal,
            op,
            {"u": factor.transform, "v": factor.transform},
            loc=weight.detach().clone(),
            u=factor.initial((self.rank, rows), weight),
            v=factor.initial((self.rank, columns), weight),
        )


def _lower(log_diagonal: Tensor, below: Tensor) -> Triangular:
    """A lower-triangular factor from its log diagonal and its packed strictly lower part."""
    n = log_diagonal.shape[0]
    row, column = torch.tril_indices(n, n, -1, device=below.device)
    lower = torch.diag(log_diagonal.exp())
    return Triangular(lower.index_put((row, column), below))


def _matrix_normal(
    loc: Tensor,
    row_scale: Tensor,
    row_factor: Tensor,
    column_scale: Tensor,
    column_factor: Tensor,
    diagonal: Tensor | None = None,
    *,
    make: Callable[[Tensor, Tensor], Factor],
    validate_args: bool | None = None,
) -> KroneckerNormal:
    rows, columns = make(row_scale, row_factor), make(column_scale, column_factor)
    return KroneckerNormal(loc, rows, columns, diagonal, validate_args=validate_args)


def _diagonal_low_rank(log_scale: Tensor, low_rank: Tensor) -> DiagonalLowRank:
    return DiagonalLowRank(log_scale.exp(), low_rank)


@dataclass(frozen=True)
class MatrixNormal(Posterior):
    """Normal weights with a Kronecker covariance over rows and columns [matrix normal, section
    3.4].

    Args:
        scale: where the standard deviation of every weight starts.
        rank: ``None`` for full lower-triangular factors as in the paper; otherwise each factor is
            a diagonal plus this rank (0: a diagonal alone).
        diagonal: add independent noise to every weight (the paper's MN+Diagonal, section 5.3);
            the KL is then an upper bound.
    """

    scale: float = 0.01
    rank: int | None = None
    diagonal: bool = False

    def __post_init__(self) -> None:
        require_positive(scale=self.scale)
        if self.rank is not None:
            require_count("rank", self.rank, 0)

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        share = 0.5 if self.diagonal else 1.0  # of the variance, between Kronecker and diagonal
        log_std = math.log(self.scale) + 0.5 * math.log(share)
        tensors = {"loc": weight.detach().clone()}
        rows, columns = op.matrix(weight).shape
        for name, n in (("row", rows), ("column", columns)):
            tensors[f"{name}_scale"] = weight.new_full((n,), 0.5 * log_std)
            if self.rank is None:
                tensors[f"{name}_factor"] = weight.new_zeros(n * (n - 1) // 2)
            else:
                start = 0.1 * math.sqrt(self.scale / max(self.rank, 1))
                tensors[f"{name}_factor"] = weight.new_empty(n, self.rank).normal_(std=start)
        transforms: dict[str, Callable[[Tensor], Tensor]] = {}
        if self.diagonal:
            tensors["diagonal"] = weight.new_full((rows, columns), log_std)
            transforms["diagonal"] = torch.exp
        make = _lower if self.rank is None else _diagonal_low_rank
        return self._learn(partial(_matrix_normal, make=make), op, transforms, **tensors)


def _zero_mean(scale: Tensor, *, noise: Any, validate_args: bool | None = None) -> LocationScale:
    return LocationScale(None, scale, noise, validate_args=validate_args)


@dataclass(frozen=True)
class ZeroMean(Posterior):
    """A variance layer: zero means, everything stored in the variances [variance, eq. 4].

    The converted weights are not used: there is no mean to put them in.

    Args:
        noise: ``"normal"``, ``"bernoulli"`` (a random sign) or ``"uniform"`` [variance, section
            3.3].
        scale: where the standard deviations start; by default as published, uniform in ±1/√in.
    """

    noise: Literal["normal", "bernoulli", "uniform"] = "normal"
    scale: float | Scale = _VARIANCE_LAYER_SCALE

    def __post_init__(self) -> None:
        require_choice("noise", self.noise, ("normal", "bernoulli", "uniform"))
        Scale.of(self.scale)

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        scale = Scale.of(self.scale)
        raw = scale.initial(op.matrix(weight).shape, weight)
        return self._learn(
            partial(_zero_mean, noise=self.noise), op, {"scale": scale.transform}, scale=raw
        )


@dataclass(frozen=True)
class _Clamp:
    low: float
    high: float

    def __call__(self, x: Tensor) -> Tensor:
        return x.clamp(self.low, self.high)


@dataclass(frozen=True)
class Dropout(Posterior):
    """Gaussian dropout ``N(μ, α μ²)`` with learnt α: variational dropout [variance, eq. 5 and 14].

    Args:
        alpha: one α for the ``"layer"``, per output ``"neuron"`` or per ``"weight"``; or
            ``"additive"``: free means and log variances, which start at ``α μ²``.
        log_alpha: where log α starts (published: −5 for LeNet, −10 for VGG).
        limit: log α is clipped to ±limit.
    """

    alpha: Literal["layer", "neuron", "weight", "additive"] = "layer"
    log_alpha: float = -5.0
    limit: float = 20.0

    def __post_init__(self) -> None:
        require_choice("alpha", self.alpha, ("layer", "neuron", "weight", "additive"))
        require(math.isfinite(self.log_alpha), f"log_alpha is {self.log_alpha}; give a number")
        require_positive(limit=self.limit)

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        loc = weight.detach().clone()
        matrix = op.matrix(loc)
        rows, columns = matrix.shape
        if self.alpha == "additive":
            stored = Scale(stored="log_variance")
            start = (2 * matrix.abs().clamp_min(1e-8).log() + self.log_alpha).contiguous()
            return self._learn(LocationScale, op, {"scale": stored.transform}, loc=loc, scale=start)
        shape = {"layer": (1, 1), "neuron": (rows, 1), "weight": (rows, columns)}[self.alpha]
        return self._learn(
            LocationScale.multiplicative,
            op,
            {"log_alpha": _Clamp(-self.limit, self.limit)},
            loc=loc,
            log_alpha=weight.new_full(shape, self.log_alpha),
        )


FactorName = Literal["normal", "cauchy", "lognormal", "halfcauchy", "fixed", "none"]


def _factor(name: FactorName, loc: Tensor | None, scale: Tensor | None) -> RandomFactor | None:
    if loc is None and scale is None:
        return None
    if name == "fixed" or scale is None:
        return loc
    if name == "halfcauchy" or loc is None:
        return HalfCauchy(scale, validate_args=False)
    kinds = {"normal": Normal, "cauchy": Cauchy, "lognormal": LogNormal}
    return kinds[name](loc, scale, validate_args=False)


def _rank1(
    weight: Tensor,
    r_loc: Tensor | None = None,
    r_scale: Tensor | None = None,
    s_loc: Tensor | None = None,
    s_scale: Tensor | None = None,
    *,
    kinds: tuple[FactorName, FactorName],
    **options: Any,
) -> Rank1Mixture:
    r, s = _factor(kinds[0], r_loc, r_scale), _factor(kinds[1], s_loc, s_scale)
    return Rank1Mixture(weight, r, s, **options)


@dataclass(frozen=True)
class Rank1(Posterior):
    """Random rank-one factors on a shared weight matrix, a mixture of members [rank-1, eq. 1–2].

    The prior is compared with the factors, not with the weights: ``prior=lb.Normal(0.1, loc=1.0)``
    is the published choice. ``factors="fixed"`` is BatchEnsemble (with ``prior=lb.Flat()``).

    Args:
        members: how many mixture members share the weights; feed ``tile(x, members)``.
        factors: the kind of both factors, or of ``(r, s)``: ``"normal"``, ``"cauchy"``,
            ``"lognormal"``, ``"halfcauchy"``, ``"fixed"`` or ``"none"``. ``r`` scales outputs,
            ``s`` input channels.
        perturb: multiply by the factors, or add them.
        signs: how factors start: above 0 it is the probability of +1 against −1; otherwise they
            are drawn from N(1, signs²) (N(0, signs²) when added).
        rate: dropout rate that sets the first scale, √(rate / (1 − rate)).
        clip: bound on sampled factors.
        kl: average the factors' KL over members, or sum it as the reference code does.
        weight_scale: standard deviation of a normal prior on the shared weights; ``None`` leaves
            that to the optimiser's weight decay.
    """

    members: int = 4
    factors: FactorName | tuple[FactorName, FactorName] = "normal"
    perturb: Literal["multiply", "add"] = "multiply"
    signs: float = -0.5
    rate: float = 1e-3
    clip: float | None = 10.0
    kl: Literal["mean", "sum"] = "mean"
    weight_scale: float | None = None

    def __post_init__(self) -> None:
        require_count("members", self.members, 1)
        kinds = ("normal", "cauchy", "lognormal", "halfcauchy", "fixed", "none")
        require(len(self._kinds) == 2, "factors is one kind, or a pair for r and s")
        for kind in self._kinds:
            require_choice("factors", kind, kinds)
        require_choice("perturb", self.perturb, ("multiply", "add"))
        require_choice("kl", self.kl, ("mean", "sum"))
        require(0 < self.rate < 1, f"rate is {self.rate}; it must lie between 0 and 1")
        require(self.signs <= 1, f"signs is {self.signs}; as a probability it is at most 1")
        for name in ("clip", "weight_scale"):
            value = getattr(self, name)
            if value is not None:
                require_positive(**{name: value})

    @property
    def _kinds(self) -> tuple[FactorName, FactorName]:
        both = self.factors
        return both if isinstance(both, tuple) else (both, both)

    def _first_loc(self, shape: tuple[int, int], like: Tensor) -> Tensor:
        empty = like.new_empty(shape)
        if self.perturb == "add":
            return empty.normal_(0.0, abs(min(self.signs, 0.0)))
        if self.signs > 0:
            return empty.bernoulli_(self.signs) * 2 - 1
        return empty.normal_(1.0, abs(self.signs))

    def _first_scale(self, kind: FactorName, shape: tuple[int, int], like: Tensor) -> Tensor:
        """Stored before a softplus; jittered as in the reference code, except for heavy tails."""
        scale = math.sqrt(self.rate / (1 - self.rate))
        raw = Scale(scale, stored="softplus").initial(shape, like)
        if kind in ("cauchy", "halfcauchy"):
            return raw
        jitter = nn.init.trunc_normal_(torch.empty_like(raw), std=0.1, a=-0.2, b=0.2)
        return raw + jitter

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        tensors = {"weight": weight.detach().clone()}
        rows, columns = op.matrix(weight).shape
        for name, kind, n in zip(
            "rs", self._kinds, (rows, op.input_channels(columns)), strict=True
        ):
            shape = (self.members, n)
            if kind not in ("halfcauchy", "none"):
                tensors[f"{name}_loc"] = self._first_loc(shape, weight)
            if kind not in ("fixed", "none"):
                tensors[f"{name}_scale"] = self._first_scale(kind, shape, weight)
        constructor = partial(
            _rank1,
            kinds=self._kinds,
            op=op,
            perturb=self.perturb,
            clip=self.clip,
            mean_kl=self.kl == "mean",
            weight_scale=self.weight_scale,
        )
        positive = Scale(stored="softplus").transform
        transforms = {f"{name}_scale": positive for name in "rs" if f"{name}_scale" in tensors}
        return self._learn(constructor, op, dict(transforms), **tensors)


POSTERIORS: dict[str, type[Spec]] = {
    recipe.__name__: recipe
    for recipe in (Point, MeanField, KTied, MatrixNormal, ZeroMean, Dropout, Rank1, Scale)
}
