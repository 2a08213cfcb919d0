"""Independent weights with means of their own: with a standard deviation each, or with none."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from leanbayes.distributions import Delta, LocationScale, WeightDistribution
from leanbayes.learned import Learned, Stored
from leanbayes.ops import LinearOp
from leanbayes.posteriors.base import Posterior, register_posterior
from leanbayes.scales import Scale

__all__ = ["MeanField", "Point"]


@register_posterior
@dataclass(frozen=True)
class Point(Posterior):
    """A point estimate; with a prior it is maximum a posteriori."""

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        return self.learned(Delta, loc=Stored.means(weight, op))


@register_posterior
@dataclass(frozen=True)
class MeanField(Posterior):
    """Independent normal weights, each with its own mean and standard deviation.

    Args:
        scale: where the standard deviations start, or a :class:`Scale` to say how they are stored.
    """

    scale: float | Scale = Scale(0.01, spread=0.001)  # noqa: RUF009 (a frozen value)

    def __post_init__(self) -> None:
        Scale.of(self.scale)

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        scale = Scale.of(self.scale).initial(op.matrix(weight).shape, weight)
        return self.learned(LocationScale, loc=Stored.means(weight, op), scale=scale)
