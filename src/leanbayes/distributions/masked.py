"""Any weight distribution with some weights forced to zero."""

from collections.abc import Sequence

import torch
from torch import Tensor

from leanbayes.distributions.base import WeightDistribution


class Masked(WeightDistribution):
    """``W ∘ mask`` for a base distribution of ``W`` and a mask of zeros and ones.

    A weight that is masked is zero and costs nothing. Where weights are correlated, the KL is an
    upper bound: that of the base without what the masked weights cost by themselves. What is left
    of it is the total correlation of all weights, which is at least that of the kept ones.

    Args:
        base: the distribution of ``W``, of one member.
        mask: ones (or ``True``) where a weight is kept, ``[out, in]``.
        validate_args: check that the parameters are finite.
    """

    def __init__(
        self, base: WeightDistribution, mask: Tensor, *, validate_args: bool | None = None
    ) -> None:
        if mask.shape != base.event_shape:
            raise ValueError(
                f"the mask has shape {tuple(mask.shape)}; it needs {tuple(base.event_shape)}"
            )
        if base.members > 1:
            raise ValueError("a mixture cannot be masked as one matrix; mask its shared weight")
        self.base = base
        self.mask = mask
        self.independent = base.independent
        self.normal_marginals = base.normal_marginals
        self.sign_symmetric = base.sign_symmetric
        self.discrete = base.discrete
        super().__init__(base.event_shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.base.mean * self.mask

    @property
    def variance(self) -> Tensor:
        return self.base.variance * self.mask

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base.rsample(sample_shape) * self.mask

    def entropies(self) -> Tensor:
        return torch.where(self.mask.bool(), self.base.entropies(), 0.0)

    def log_inverse_alpha(self) -> Tensor:
        """Return the ratio of the base; it does not depend on the mask."""
        return self.base.log_inverse_alpha()

    def covariance(self) -> Tensor:
        kept = self.mask.flatten()
        return self.base.covariance() * kept * kept.unsqueeze(-1)
