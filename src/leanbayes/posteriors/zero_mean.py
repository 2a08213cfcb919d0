"""Independent weights of mean zero."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from leanbayes.distributions import LocationScale, WeightDistribution
from leanbayes.errors import require_choice
from leanbayes.learned import Learned
from leanbayes.ops import LinearOp
from leanbayes.posteriors.base import Posterior, register_posterior
from leanbayes.scales import Scale

__all__ = ["ZeroMean"]


@register_posterior
@dataclass(frozen=True)
class ZeroMean(Posterior):
    """A variance layer: zero means, everything stored in the variances [variance, eq. 4].

    The converted weights are not used: there is no mean to put them in.

    Args:
        noise: ``"normal"``, ``"bernoulli"`` (a random sign) or ``"uniform"`` [variance, 3.3].
        scale: where the standard deviations start; by default as published, uniform in ±1/√in.
    """

    noise: Literal["normal", "bernoulli", "uniform"] = "normal"
    scale: float | Scale = Scale("fan_in", stored="signed")  # noqa: RUF009 (a frozen value)

    def __post_init__(self) -> None:
        require_choice("noise", self.noise, ("normal", "bernoulli", "uniform"))
        Scale.of(self.scale)

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        scale = Scale.of(self.scale).initial(op.matrix(weight).shape, weight)
        return self.learned(partial(LocationScale, None, noise=self.noise), scale=scale)
