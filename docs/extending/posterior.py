"""A complete small posterior to copy: one standard deviation for each row of the weight matrix.

``adding_a_posterior.md`` goes through it part by part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import leanbayes as lb
from leanbayes.distributions import Moments, WeightDistribution
from leanbayes.distributions.base import ENTROPY_OF_UNIT_NORMAL
from leanbayes.ops import LinearOp


class RowScaledNormal(WeightDistribution):
    """Independent normal weights ``w_ij ~ N(loc_ij, scale_i²)``.

    Args:
        loc: the means ``[out, in]``.
        scale: the standard deviation of each row ``[out]``.
        validate_args: check that the parameters are finite.
    """

    normal_marginals = True
    sign_symmetric = True

    def __init__(self, loc: Tensor, scale: Tensor, *, validate_args: bool | None = None) -> None:
        self.loc = loc
        self.scale = scale
        super().__init__(loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale.square().unsqueeze(-1).expand_as(self.loc)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        e = self.loc.new_empty(*sample_shape, *self.loc.shape).normal_()
        return torch.addcmul(self.loc, self.scale.unsqueeze(-1), e)

    def entropies(self) -> Tensor:
        return (self.scale.log() + ENTROPY_OF_UNIT_NORMAL).unsqueeze(-1).expand_as(self.loc)

    def log_prob(self, value: Tensor) -> Tensor:
        z = (value - self.loc) / self.scale.unsqueeze(-1)
        return (0.5 - 0.5 * z.square() - self.entropies()).sum((-2, -1))

    def moments(self, x: Tensor, op: LinearOp) -> Moments:
        """``Var y_i = scale_i² · |p|²``: one row of ones instead of a dense variance matrix."""
        if op.groups > 1:  # a single row would have to serve every group
            return super().moments(x, op)
        squares = op(op.square(x), self.loc.new_ones(1, self.loc.shape[1]))
        row_variance = op.spread(self.scale.square().unsqueeze(0), squares.ndim)
        return Moments(op(x, self.loc), squares * row_variance)


@lb.extend.register_posterior
@dataclass(frozen=True)
class RowScale(lb.posteriors.Posterior):
    """Independent normal weights with one standard deviation for each output.

    Args:
        scale: where the standard deviations start.
    """

    scale: float = 0.01

    def __post_init__(self) -> None:
        lb.posteriors.Scale(self.scale)  # raises unless it is positive

    def __call__(self, weight: Tensor, op: LinearOp) -> lb.extend.Learned[WeightDistribution]:
        rows, _ = op.matrix(weight).shape
        return self.learned(
            RowScaledNormal,
            loc=lb.extend.Stored.means(weight, op),
            scale=lb.posteriors.Scale(self.scale).initial((rows,), weight),
        )
