"""Independent weights: mean field, its limit of no noise, variance layers, Gaussian dropout."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torch import Tensor

from leanbayes.distributions import Delta, LocationScale, WeightDistribution
from leanbayes.errors import require, require_choice, require_positive
from leanbayes.ops import LinearOp
from leanbayes.parameters.learned import Clamp, Exp, Learned, Stored
from leanbayes.parameters.scales import Scale
from leanbayes.posteriors.base import Posterior, cut_matrices, register_posterior
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
