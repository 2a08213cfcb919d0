"""Random factors whose product is the weight matrix."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from leanbayes.distributions import LocationScale, LowRankProduct, WeightDistribution
from leanbayes.errors import require_choice, require_count
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
