"""Gaussian dropout with learnt rates: variational dropout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from leanbayes.distributions import LocationScale, WeightDistribution
from leanbayes.errors import require, require_choice, require_positive
from leanbayes.learned import Learned, Stored
from leanbayes.ops import LinearOp
from leanbayes.posteriors.base import Posterior, register_posterior
from leanbayes.transforms import Clamp, Exp

__all__ = ["Dropout"]


@register_posterior
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
        loc = Stored.means(weight, op)
        matrix = op.matrix(loc.tensor)
        rows, columns = matrix.shape
        if self.alpha == "additive":
            log_variance = 2 * matrix.abs().clamp_min(1e-8).log() + self.log_alpha
            scale = Stored(log_variance.contiguous(), Exp(rate=0.5))
            return self.learned(LocationScale, loc=loc, scale=scale)
        shape = {"layer": (1, 1), "neuron": (rows, 1), "weight": (rows, columns)}[self.alpha]
        first = weight.new_full(shape, self.log_alpha)
        log_alpha = Stored(first, Clamp(-self.limit, self.limit))
        return self.learned(LocationScale.multiplicative, loc=loc, log_alpha=log_alpha)
