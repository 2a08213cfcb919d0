"""Correlated weights: a Kronecker covariance over rows and columns."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from leanbayes.distributions import (
    DiagonalLowRank,
    Factor,
    KroneckerNormal,
    WeightDistribution,
)
from leanbayes.distributions.matrix_normal import EntropyBound
from leanbayes.errors import require, require_count, require_positive
from leanbayes.kernels import PackedTriangular
from leanbayes.ops import LinearOp
from leanbayes.parameters.learned import Exp, Learned, Stored
from leanbayes.posteriors.base import Posterior, register_posterior


def _part_of_lower(diagonal: Tensor, below: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """The diagonal and the rest of ``L`` with ``L Lᵀ = (F Fᵀ)[index, index]``, from that of ``F``.

    ``L`` is ``Rᵀ`` of ``F[index]ᵀ = Q R``, which needs no product that could lose digits.
    """
    whole = PackedTriangular(diagonal.double(), below.double()).lower
    upper = torch.linalg.qr(whole[index].mT, mode="r").R
    lower = (upper * upper.diagonal().sign().unsqueeze(1)).mT
    row, column = torch.tril_indices(len(index), len(index), -1, device=lower.device)
    return lower.diagonal(), lower[row, column]


def _kronecker_normal(
    loc: Tensor,
    row_scale: Tensor,
    row_factor: Tensor,
    column_scale: Tensor,
    column_factor: Tensor,
    diagonal: Tensor | None = None,
    *,
    make: Callable[[Tensor, Tensor], Factor],
    bound: EntropyBound = "minkowski",
    validate_args: bool | None = None,
) -> KroneckerNormal:
    rows, columns = make(row_scale, row_factor), make(column_scale, column_factor)
    return KroneckerNormal(loc, rows, columns, diagonal, bound=bound, validate_args=validate_args)


@register_posterior
@dataclass(frozen=True)
class MatrixNormal(Posterior):
    """Normal weights with a Kronecker covariance over rows and columns [matrix normal, 3.4].

    Args:
        scale: first standard deviation of every weight.
        rank: ``None`` for full lower-triangular factors as in the paper; otherwise each factor is
            a diagonal plus this rank (0: a diagonal alone).
        diagonal: add independent noise to every weight (the paper's MN+Diagonal, section 5.3);
            the KL is then an upper bound: by Minkowski's inequality if ``True``, or by
            ``"pivots"``, which is tighter and takes one more logarithm for each weight.

    Raises:
        ValueError: If the scale is not positive or the rank is negative.
    """

    scale: float = 0.01
    rank: int | None = None
    diagonal: bool | Literal["pivots"] = False

    def __post_init__(self) -> None:
        require_positive(scale=self.scale)
        require(
            self.diagonal in (False, True, "pivots"),
            f"diagonal is {self.diagonal!r}; it must be True, False or 'pivots'",
        )
        if self.rank is not None:
            require_count("rank", self.rank, 0)

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        share = 0.5 if self.diagonal else 1.0  # of the variance, between Kronecker and diagonal
        std = self.scale * math.sqrt(share)
        arguments = {"loc": Stored.means(weight, op)}
        shape = op.matrix(weight).shape
        for name, n in zip(("row", "column"), shape, strict=True):
            arguments[f"{name}_scale"] = Stored(weight.new_zeros(n), Exp(unit=math.sqrt(std)))
            arguments[f"{name}_factor"] = Stored(self._first_factor(n, weight))
        if self.diagonal:
            arguments["diagonal"] = Stored(weight.new_zeros(shape), Exp(unit=std))
        make = PackedTriangular if self.rank is None else DiagonalLowRank
        bound: EntropyBound = "pivots" if self.diagonal == "pivots" else "minkowski"
        return self.learned(partial(_kronecker_normal, make=make, bound=bound), **arguments)

    def stored_part(
        self, whole: Learned[WeightDistribution], rows: Tensor, columns: Tensor
    ) -> dict[str, Tensor]:
        """Return the posterior of some rows and columns: parts of both factors."""
        stored = {name: whole.get_parameter(name).detach() for name in whole.roles}
        cut = {"loc": whole.value("loc")[rows][:, columns]}
        if self.diagonal:
            cut["diagonal"] = stored["diagonal"][rows][:, columns]
        for name, index in (("row", rows), ("column", columns)):
            scale, factor = stored[f"{name}_scale"], stored[f"{name}_factor"]
            if self.rank is None:
                value, stand = whole.value(f"{name}_scale"), whole.transforms[f"{name}_scale"]
                value, factor = _part_of_lower(value, factor, index)
                scale = stand.inverse(value)
            else:
                scale, factor = scale[index], factor[index]
            cut |= {f"{name}_scale": scale, f"{name}_factor": factor}
        return cut

    def _first_factor(self, n: int, like: Tensor) -> Tensor:
        """What stands beside the diagonal of a factor: its packed lower part, or a low rank."""
        if self.rank is None:
            return like.new_zeros(n * (n - 1) // 2)
        start = 0.1 * math.sqrt(self.scale / max(self.rank, 1))
        return like.new_empty(n, self.rank).normal_(std=start)
