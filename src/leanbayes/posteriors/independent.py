"""Independent weights: points, mean field, k-tied, variance layers, dropout, and pruned weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from leanbayes.distributions import Delta, KTiedNormal, LocationScale, Masked, WeightDistribution
from leanbayes.errors import require, require_choice, require_count, require_positive
from leanbayes.ops import LinearOp
from leanbayes.parameters.learned import Clamp, Exp, Learned, Stored
from leanbayes.parameters.scales import Scale
from leanbayes.posteriors.base import Posterior, cut_matrices, register_posterior
from leanbayes.posteriors.factored import LowRank, Rank1
from leanbayes.precision import wide


def _first_scale(scale: float | Scale, weight: Tensor, op: LinearOp) -> Stored:
    shape = op.matrix(weight).shape
    return Scale.of(scale).initial(shape, weight, op.fan_in(shape[1]))


@dataclass(frozen=True)
class _Independent(Posterior):
    """A posterior of independent weights, which every stored matrix can be cut for."""

    def stored_part(
        self, whole: Learned[WeightDistribution], rows: Tensor, columns: Tensor
    ) -> dict[str, Tensor]:
        return cut_matrices(whole, rows, columns)


@register_posterior
@dataclass(frozen=True)
class Point(_Independent):
    """A point estimate; with a prior it is maximum a posteriori."""

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        return self.learned(Delta, loc=Stored.means(weight, op))


@register_posterior
@dataclass(frozen=True)
class MeanField(_Independent):
    """Independent normal weights, each with its own mean and standard deviation.

    Args:
        scale: first standard deviation, or a :class:`Scale` to say how they are stored.
    """

    scale: float | Scale = Scale(0.01, spread=0.001)  # noqa: RUF009 (a frozen value)

    def __post_init__(self) -> None:
        Scale.of(self.scale)

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        scale, loc = _first_scale(self.scale, weight, op), Stored.means(weight, op)
        stored = scale.transform
        if not (isinstance(stored, Exp) and stored.rate == 1 and stored.ceiling is None):
            return self.learned(LocationScale, loc=loc, scale=scale)
        family = partial(LocationScale, log_unit=math.log(stored.unit))
        return self.learned(family, loc=loc, scale=replace(scale, as_it_is=True))


@register_posterior
@dataclass(frozen=True)
class ZeroMean(_Independent):
    """A variance layer: zero means, everything stored in the variances [variance, eq. 4].

    The converted weights are not used: there is not a mean to put them in.

    Args:
        noise: ``"normal"``, ``"bernoulli"`` (a random sign) or ``"uniform"`` [variance, 3.3].
        scale: first standard deviation; by default as published, uniform in ±1/√fan-in
            (in an embedding the fan-in is 1).

    Raises:
        ValueError: If the noise is unknown.
    """

    noise: Literal["normal", "bernoulli", "uniform"] = "normal"
    scale: float | Scale = Scale("fan_in", stored="signed")  # noqa: RUF009 (a frozen value)

    def __post_init__(self) -> None:
        require_choice("noise", self.noise, ("normal", "bernoulli", "uniform"))
        Scale.of(self.scale)

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        scale = _first_scale(self.scale, weight, op)
        return self.learned(partial(LocationScale, None, noise=self.noise), scale=scale)


@register_posterior
@dataclass(frozen=True)
class VariationalDropout(_Independent):
    """Gaussian dropout ``N(μ, α μ²)`` with learned α: variational dropout [variance, eq. 5 and 14].

    Args:
        alpha: one α for the ``"layer"``, per output ``"neuron"`` or per ``"weight"``; or
            ``"additive"``: free means and log variances, which start at ``α μ²``.
        log_alpha: first log α (published: −5 for LeNet, −10 for VGG).
        limit: log α is clipped to ±limit.

    Raises:
        ValueError: If an option is unknown or out of range.
    """

    alpha: Literal["layer", "neuron", "weight", "additive"] = "layer"
    log_alpha: float = -5.0
    limit: float = 20.0

    def __post_init__(self) -> None:
        require_choice("alpha", self.alpha, ("layer", "neuron", "weight", "additive"))
        require(math.isfinite(self.log_alpha), f"log_alpha is {self.log_alpha}; give a number")
        require_positive(limit=self.limit)

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        loc = Stored.means(weight, op)
        matrix = op.matrix(loc.tensor)
        rows, columns = matrix.shape
        if self.alpha == "additive":
            squares = 2 * wide(matrix).abs().clamp_min(1e-8).log()
            relative = Exp(rate=0.5, unit=math.exp(0.5 * self.log_alpha))
            scale = Stored(squares.to(weight.dtype).contiguous(), relative)
            return self.learned(LocationScale, loc=loc, scale=scale)
        shape = {"layer": (1, 1), "neuron": (rows, 1), "weight": (rows, columns)}[self.alpha]
        clipped = Clamp(-self.limit, self.limit, self.log_alpha)
        log_alpha = Stored(weight.new_zeros(shape), clipped)
        return self.learned(LocationScale.multiplicative, loc=loc, log_alpha=log_alpha)


@register_posterior
@dataclass(frozen=True)
class KTied(Posterior):
    """Independent normal weights with standard deviations ``U Vᵀ`` of low rank [k-tied, eq. 3].

    The factors start at ``√(scale / rank)``, so that the standard deviations start at ``scale``
    whatever the rank; by default with the published jitter of 0.1 on their logs [k-tied, E].

    Args:
        rank: the number of rank-one terms ``k``.
        scale: first standard deviation, or a :class:`Scale` for the factors' storage.

    Raises:
        ValueError: If the rank is below 1 or the scale does not suit factors.
    """

    rank: int = 2
    scale: float | Scale = Scale(0.01, raw_spread=0.1)  # noqa: RUF009 (a frozen value)

    def __post_init__(self) -> None:
        require_count("rank", self.rank, 1)
        scale = Scale.of(self.scale)
        require(scale.ceiling is None, "tied factors have no ceiling; use MeanField for one")
        require(scale.start != "fan_in", "tied factors start at a number, not at 'fan_in'")

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        rows, columns = op.matrix(weight).shape
        scale = Scale.of(self.scale).for_fan_in(op.fan_in(columns))
        assert not isinstance(scale.start, str)
        start = math.sqrt(scale.start / self.rank)
        factor = replace(scale, start=start)
        logs = factor.stored == "log"
        u = factor.initial((self.rank, rows), weight)
        v = factor.initial((self.rank, columns), weight)
        return self.learned(
            partial(KTiedNormal, log_unit=math.log(start) if logs else None),
            loc=Stored.means(weight, op),
            u=replace(u, as_it_is=logs),
            v=replace(v, as_it_is=logs),
        )

    def stored_part(
        self, whole: Learned[WeightDistribution], rows: Tensor, columns: Tensor
    ) -> dict[str, Tensor]:
        u, v = (whole.get_parameter(name).detach() for name in ("u", "v"))
        return {"loc": whole.value("loc")[rows][:, columns], "u": u[:, rows], "v": v[:, columns]}


@register_posterior
@dataclass(frozen=True)
class Pruned(Posterior):
    """Another posterior with some weights fixed at zero, where they cost nothing.

    Which ones is the mask, a saved and untrained tensor of the layer's posterior. It starts with
    every weight kept; :func:`~leanbayes.prune` sets it.

    Args:
        base: spec of the posterior of the weights that are kept; not of rank-one factors, which
            belong to whole rows and columns.

    Raises:
        ValueError: If the posterior cannot be pruned.
    """

    base: Posterior = MeanField()

    def __post_init__(self) -> None:
        require(
            isinstance(self.base, Posterior)
            and not isinstance(self.base, LowRank | Pruned | Rank1),
            f"base is {self.base!r}; give the spec of a posterior of single weights, such as "
            "lb.MeanField()",
        )

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        shape = op.matrix(weight).shape
        everything = torch.ones(shape, dtype=torch.bool, device=weight.device)
        return masked(self.base(weight, op), everything)

    def part(
        self, whole: Learned[WeightDistribution], op: LinearOp, rows: Tensor, columns: Tensor
    ) -> Learned[WeightDistribution]:
        """Return the part of the base, without a mask if nothing of it is pruned."""
        mask = whole.value("mask")[rows][:, columns]
        cut = self.base.part(whole, op, rows, columns)
        return cut if bool(mask.all()) else masked(cut, mask)


def masked(posterior: Learned[WeightDistribution], mask: Tensor) -> Learned[WeightDistribution]:
    """Return a posterior with the same parameters, shared and not copied, and a mask of weights."""
    spec = posterior.spec
    mask = mask.bool().to(next(posterior.parameters()).device)
    if isinstance(spec, Pruned):
        again = posterior.extended(posterior.constructor, spec=spec)
        again.register_buffer("mask", posterior.value("mask") & mask)
        return again
    return posterior.extended(partial(_masked, posterior.constructor), spec=Pruned(spec), mask=mask)


def _masked(
    constructor: Callable[..., WeightDistribution], /, *, mask: Tensor, **arguments: Any
) -> Masked:
    return Masked(constructor(**arguments), mask, validate_args=False)
