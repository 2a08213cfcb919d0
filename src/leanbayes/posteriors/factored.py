"""Products of random factors: of low rank, or of rank one on a shared weight matrix."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.distributions import Cauchy, HalfCauchy, LogNormal, Normal

from leanbayes.distributions import LocationScale, LowRankProduct, Rank1Mixture, WeightDistribution
from leanbayes.distributions.factored import RandomFactor
from leanbayes.errors import require, require_choice, require_count, require_positive
from leanbayes.ops import LinearOp
from leanbayes.parameters.learned import Learned, Stored
from leanbayes.parameters.scales import Scale
from leanbayes.posteriors.base import Posterior, register_posterior
from leanbayes.precision import wide


def _low_rank_product(
    left_loc: Tensor,
    left_scale: Tensor,
    right_loc: Tensor,
    right_scale: Tensor,
    *,
    validate_args: bool | None = None,
) -> LowRankProduct:
    left = LocationScale(left_loc, left_scale, validate_args=False)
    right = LocationScale(right_loc, right_scale, validate_args=False)
    return LowRankProduct(left, right, validate_args=validate_args)


@register_posterior
@dataclass(frozen=True)
class LowRank(Posterior):
    """Weights ``A B`` of low rank, with independent normal entries of both factors.

    There are ``2 · rank · (out + in)`` parameters instead of ``2 · out · in``. The prior is
    compared with the entries of the factors: ``lb.priors.Normal((s² / rank) ** 0.25)`` is one
    under which weights have a standard deviation of ``s``.

    Args:
        rank: rank of the weight matrix; at most the smaller of its sides is used.
        scale: first standard deviation of the factors' entries, or a :class:`Scale`.
        start: ``"svd"`` starts at the nearest matrix of this rank, for a network that is trained
            already; ``"random"`` at random factors whose product varies as the weights do, for one
            that is not: the nearest matrix would be too small.

    Raises:
        ValueError: If the rank is below 1 or the start is unknown.

    Note:
        Singular Bayesian neural networks (2026) propose this family.
    """

    rank: int = 8
    scale: float | Scale = 0.01
    start: Literal["svd", "random"] = "svd"

    def __post_init__(self) -> None:
        require_count("rank", self.rank, 1)
        require_choice("start", self.start, ("svd", "random"))
        Scale.of(self.scale)

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        matrix = wide(op.matrix(weight.detach()))
        rank = min(self.rank, *matrix.shape)
        first = _nearest if self.start == "svd" else _alike
        arguments = {}
        for name, factor in zip(("left", "right"), first(matrix, rank), strict=True):
            stored = factor.to(weight.dtype).contiguous()
            arguments[f"{name}_loc"] = Stored(stored, role="means")
            arguments[f"{name}_scale"] = Scale.of(self.scale).initial(stored.shape, weight)
        return self.learned(_low_rank_product, **arguments)


def _nearest(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors of the nearest matrix of this rank, between which singular values are shared."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, root.unsqueeze(-1) * v[:rank]


def _alike(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return normal factors whose product has the mean square of a matrix."""
    spread = (matrix.square().mean() / rank) ** 0.25
    left = torch.randn_like(matrix[:, :1].expand(-1, rank))
    right = torch.randn_like(matrix[:1].expand(rank, -1))
    return spread * left, spread * right


FactorName = Literal["normal", "cauchy", "lognormal", "halfcauchy", "fixed", "none"]


def _factor(name: FactorName, loc: Tensor | None, scale: Tensor | None) -> RandomFactor | None:
    if scale is None:  # a fixed factor, or none at all
        return loc
    if loc is None:
        return HalfCauchy(scale, validate_args=False)
    kinds = {"normal": Normal, "cauchy": Cauchy, "lognormal": LogNormal}
    return kinds[name](loc, scale, validate_args=False)


def _rank1_mixture(
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


@register_posterior
@dataclass(frozen=True)
class Rank1(Posterior):
    """Random rank-one factors on a shared weight matrix, a mixture of members [rank-1, eq. 1–2].

    The prior is compared with the factors, not with the weights: ``prior=lb.priors.Normal(0.1,
    loc=1.0)`` is the published choice, and what a conversion without a prior takes.
    ``factors="fixed"`` is
    BatchEnsemble (with ``prior=lb.priors.Flat()``). The shared weights have no prior unless
    ``weight_scale`` is given: train them with weight decay.

    Args:
        members: number of mixture members that share the weights.
        factors: the kind of both factors, or of ``(r, s)``: ``"normal"``, ``"cauchy"``,
            ``"lognormal"``, ``"halfcauchy"``, ``"fixed"`` or ``"none"``. ``r`` scales outputs,
            ``s`` input channels.
        perturb: multiply by the factors, or add them.
        signs: first values of factors: above 0 the probability of +1 against −1; otherwise they
            are drawn from N(1, signs²) (N(0, signs²) when added). Log-normal factors start with
            mean one and this spread of their logarithms.
        rate: dropout rate that sets the first scale, √(rate / (1 − rate)).
        clip: bound on sampled factors.
        kl: average the factors' KL over members, or sum it as the reference code does.
        weight_scale: standard deviation of a normal prior on the shared weights; ``None`` leaves
            that to the optimizer's weight decay.
        batch: data of a member: ``"split"`` gives each its contiguous share of a batch, at
            the cost of one network, ``"tile"`` all of it, as published; a loop of your own feeds
            ``x``, or ``tile(x, members)``. Predictions are those of all members either way. Specs
            that were saved before there was a choice mean ``"tile"``.

    Raises:
        ValueError: If an option is unknown or out of range.
    """

    if_absent: ClassVar[Mapping[str, Any]] = {"batch": "tile"}

    members: int = 4
    factors: FactorName | tuple[FactorName, FactorName] = "normal"
    perturb: Literal["multiply", "add"] = "multiply"
    signs: float = -0.5
    rate: float = 1e-3
    clip: float | None = 10.0
    kl: Literal["mean", "sum"] = "mean"
    weight_scale: float | None = None
    batch: Literal["split", "tile"] = "split"

    def __post_init__(self) -> None:
        require_count("members", self.members, 1)
        require(len(self.kinds) == 2, "factors is one kind, or a pair for r and s")
        for kind in self.kinds:
            require_choice("factors", kind, get_args(FactorName))
        require_choice("perturb", self.perturb, ("multiply", "add"))
        require_choice("kl", self.kl, ("mean", "sum"))
        require_choice("batch", self.batch, ("split", "tile"))
        require(0 < self.rate < 1, f"rate is {self.rate}; it must lie between 0 and 1")
        require(self.signs <= 1, f"signs is {self.signs}; as a probability it is at most 1")
        for name in ("clip", "weight_scale"):
            value = getattr(self, name)
            if value is not None:
                require_positive(**{name: value})

    @property
    def kinds(self) -> tuple[FactorName, FactorName]:
        """The kinds of ``r`` and ``s``."""
        both = self.factors
        return both if isinstance(both, tuple) else (both, both)

    def _first_loc(self, kind: FactorName, shape: tuple[int, int], like: Tensor) -> Stored:
        """Around one; the logarithm of a positive factor starts where that has mean one."""
        first, spread = like.new_empty(shape), abs(min(self.signs, 0.0))
        if kind == "lognormal":
            first.normal_(-(self._scale_of_rate**2 + spread**2) / 2, spread)
        elif self.perturb == "add":
            first.normal_(0.0, spread)
        elif self.signs > 0:
            first = first.bernoulli_(self.signs) * 2 - 1
        else:
            first.normal_(1.0, spread)
        return Stored(first, role="factors")

    @property
    def _scale_of_rate(self) -> float:
        return math.sqrt(self.rate / (1 - self.rate))

    def _first_scale(self, kind: FactorName, shape: tuple[int, int], like: Tensor) -> Stored:
        """Stored before a softplus; jittered as in the reference code, except for heavy tails."""
        first = Scale(self._scale_of_rate, stored="softplus").initial(shape, like)
        if kind not in ("cauchy", "halfcauchy"):
            jitter = torch.empty_like(first.tensor)
            first.tensor.add_(nn.init.trunc_normal_(jitter, std=0.1, a=-0.2, b=0.2))
        return first

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        arguments = {"weight": Stored.means(weight, op)}
        rows, columns = op.matrix(weight).shape
        sizes = (rows, op.input_channels(columns))
        for name, kind, n in zip("rs", self.kinds, sizes, strict=True):
            shape = (self.members, n)
            if kind not in ("halfcauchy", "none"):
                arguments[f"{name}_loc"] = self._first_loc(kind, shape, weight)
            if kind not in ("fixed", "none"):
                arguments[f"{name}_scale"] = self._first_scale(kind, shape, weight)
        mixture = partial(
            _rank1_mixture,
            kinds=self.kinds,
            op=op,
            perturb=self.perturb,
            clip=self.clip,
            mean_kl=self.kl == "mean",
            weight_scale=self.weight_scale,
        )
        return self.learned(mixture, **arguments)
