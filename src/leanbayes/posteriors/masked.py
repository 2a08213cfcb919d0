"""Posteriors some of whose weights are zero for good."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from leanbayes.distributions import Masked, WeightDistribution
from leanbayes.errors import require
from leanbayes.ops import LinearOp
from leanbayes.parameters.learned import Learned
from leanbayes.posteriors.base import Posterior, register_posterior
from leanbayes.posteriors.location_scale import MeanField
from leanbayes.posteriors.low_rank import LowRank
from leanbayes.posteriors.rank1 import Rank1


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

    base: Posterior = MeanField()  # noqa: RUF009 (a frozen value)

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
