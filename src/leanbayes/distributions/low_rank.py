"""Weights of low rank: a product of two random factors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from leanbayes.distributions.base import FRESH, NoiseSource, WeightDistribution
from leanbayes.distributions.location_scale import LocationScale
from leanbayes.ops import Linear, LinearOp


class LowRankProduct(WeightDistribution):
    """``W = A B`` with independent entries of both factors: every draw has the same low rank.

    The weights are not normal, and they are correlated: those of a row share the row of ``A``,
    those of a column the column of ``B``. A matrix of low rank has no density among all matrices,
    so a prior is compared with the factors, and not with the weights.

    An output is drawn exactly in two steps, ``h = B p`` and ``y = A h``: given ``h``, the outputs
    are independent and normal.

    Args:
        left: the factor ``A [out, rank]``.
        right: the factor ``B [rank, in]``.
        validate_args: check that the parameters are finite.
    """

    independent = False

    def __init__(
        self, left: LocationScale, right: LocationScale, *, validate_args: bool | None = None
    ) -> None:
        (out, rank), (rows, columns) = left.event_shape, right.event_shape
        if rank != rows:
            raise ValueError(
                f"a left factor of {rank} columns does not fit a right factor of {rows} rows"
            )
        self.left = left
        self.right = right
        super().__init__((out, columns), validate_args=validate_args)

    def _validate(self) -> None:
        for factor in (self.left, self.right):
            factor._validate()

    @property
    def rank(self) -> int:
        """The rank of every draw."""
        return int(self.left.event_shape[1])

    @property
    def factors(self) -> tuple[LocationScale, LocationScale]:
        """Both factors."""
        return self.left, self.right

    @property
    def mean(self) -> Tensor:
        return self.left.mean @ self.right.mean

    @property
    def variance(self) -> Tensor:
        """``Σₖ (a²ᵢₖ Var bₖⱼ + Var aᵢₖ b²ₖⱼ + Var aᵢₖ Var bₖⱼ)``."""
        of_left, of_right = self.left.variance, self.right.variance
        by_right = self.left.mean.square() @ of_right
        return by_right + of_left @ (self.right.mean.square() + of_right)

    def covariance(self) -> Tensor:
        (out, columns), rank = self.event_shape, self.rank
        size = out * columns
        total = self.left.mean.new_zeros(size, size)
        for k in range(rank):
            a, b = self.left.mean[:, k], self.right.mean[k]
            products = torch.outer(a, a), torch.outer(b, b)
            moments = (
                product + torch.diag(variance)
                for product, variance in zip(
                    products, (self.left.variance[:, k], self.right.variance[k]), strict=True
                )
            )
            total = total + torch.kron(*moments) - torch.kron(*products)
        return total

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.left.rsample(sample_shape) @ self.right.rsample(sample_shape)

    def entropy(self) -> Tensor:
        raise NotImplementedError("a product of low rank has no density over matrices")

    def local_is_exact(self, op: LinearOp, *, reused: bool) -> bool:
        return not reused and op.groups == 1

    def local(
        self, x: Tensor, op: LinearOp, bias: Tensor | None = None, noise: NoiseSource = FRESH
    ) -> Tensor:
        self._require_one_group(op)
        hidden = self.right.local(x, op, None, noise).movedim(op.channel_dim, -1)
        y = self.left.local(hidden, _mixing(op), bias, noise)
        return op.silence(x, y.movedim(-1, op.channel_dim))

    def _require_one_group(self, op: LinearOp) -> None:
        if op.groups > 1:
            raise ValueError(
                "groups of a convolution share the right factor of a low-rank matrix, so there is "
                "no noise of single outputs; use estimator=lb.estimators.weights"
            )


def _mixing(op: LinearOp) -> Linear:
    """How the left factor acts on what the right one has made, with channels moved to the end."""
    return Linear(batch_dim=op.batch_dim)
