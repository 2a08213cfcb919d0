"""The k-tied Normal: independent weights whose standard deviations are a low-rank product."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leanbayes.distributions.base import ENTROPY_OF_UNIT_NORMAL, WeightDistribution
from leanbayes.ops import LinearOp


class KTiedNormal(WeightDistribution):
    """Independent normal weights with ``scale = uᵀ v`` [k-tied, eq. 3–4].

    The variance ``(uᵀ v)²`` has rank ``k(k+1)/2``, because
    ``σ²_ij = Σ_{a ≤ b} (2 − δ_ab) u_ai u_bi · v_aj v_bj``, so the variance of an output takes two
    skinny products instead of a dense one.

    Attributes:
        given_u: the row factors, or their logarithms, as they were given.
        given_v: the column factors, or their logarithms.
        log_unit: offset of these logarithms; ``None`` if they are the factors.

    Args:
        loc: the means ``[out, in]``.
        u: the row factors ``[k, out]``, not negative.
        v: the column factors ``[k, in]``, not negative.
        log_unit: if given, the factors are ``exp(u + log_unit)`` and ``exp(v + log_unit)``.
        validate_args: check that the parameters are finite.
    """

    normal_marginals = True
    sign_symmetric = True

    def __init__(
        self,
        loc: Tensor,
        u: Tensor,
        v: Tensor,
        *,
        log_unit: float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if u.shape[0] != v.shape[0] or (u.shape[1], v.shape[1]) != tuple(loc.shape):
            raise ValueError(
                f"factors {tuple(u.shape)} and {tuple(v.shape)} do not tie means of shape "
                f"{tuple(loc.shape)}; they are [k, out] and [k, in]"
            )
        self.loc = loc
        self.given_u, self.given_v, self.log_unit = u, v, log_unit
        self._factors: tuple[Tensor, Tensor] | None = (u, v) if log_unit is None else None
        self._scale: Tensor | None = None
        super().__init__(loc.shape, validate_args=validate_args)

    @property
    def u(self) -> Tensor:
        """The row factors ``[k, out]``."""
        return self._both()[0]

    @property
    def v(self) -> Tensor:
        """The column factors ``[k, in]``."""
        return self._both()[1]

    def _both(self) -> tuple[Tensor, Tensor]:
        """Return the factors, made from their logarithms at the first use."""
        if self._factors is None:
            unit = self.log_unit or 0.0
            self._factors = (self.given_u + unit).exp(), (self.given_v + unit).exp()
        return self._factors

    @property
    def rank(self) -> int:
        """How many rank-one terms the scale has."""
        return self.given_u.shape[0]

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def scale(self) -> Tensor:
        """The standard deviations ``[out, in]``, made at the first use."""
        if self._scale is None:
            self._scale = self.u.t() @ self.v
        return self._scale

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    def columns(self, index: Tensor) -> KTiedNormal:
        """Return the law of some columns of the matrix, as rows."""
        loc, v = self.loc.mT.index_select(0, index), self.given_v.index_select(1, index)
        return KTiedNormal(loc, v, self.given_u, log_unit=self.log_unit, validate_args=False)

    def draw(self, sample_shape: Sequence[int] = ()) -> Tensor:
        e = self.loc.new_empty(*sample_shape, *self.loc.shape).normal_()
        return torch.addcmul(self.loc, self.scale, e)

    def entropies(self) -> Tensor:
        return self.scale.log() + ENTROPY_OF_UNIT_NORMAL

    def entropy(self) -> Tensor:
        if self.rank == 1:  # the log of a product separates
            out, columns = self.loc.shape
            logs = columns * self.u.log().sum() + out * self.v.log().sum()
        else:
            logs = self.scale.log().sum()
        return logs + self.loc.numel() * ENTROPY_OF_UNIT_NORMAL

    def total_variance(self) -> Tensor:
        """Return ``‖U Vᵀ‖² = Σ (UᵀU) ∘ (VᵀV)``: no matrix of the layer's size is made."""
        return ((self.u @ self.u.t()) * (self.v @ self.v.t())).sum()

    def log_prob(self, value: Tensor) -> Tensor:
        z = (value - self.loc) / self.scale
        return (0.5 - 0.5 * z.square() - self.entropies()).sum((-2, -1))

    def variance_factors(self) -> tuple[Tensor, Tensor]:
        """Return factors ``ũ [K, out]`` and ``ṽ [K, in]`` of the variance, ``K = k(k+1)/2``."""
        first, second = torch.triu_indices(self.rank, self.rank, device=self.u.device)
        twice = 2.0 - (first == second).to(self.u.dtype)
        u = self.u[first] * self.u[second] * twice.unsqueeze(-1)
        return u, self.v[first] * self.v[second]

    def output_variance(self, squares: Tensor, op: LinearOp) -> Tensor:
        if op.groups > 1:  # a row of ṽ would have to meet every group: the dense way is right
            return super().output_variance(squares, op)
        u, v = self.variance_factors()
        shared = op.skinny(squares, v)
        return (shared.movedim(op.channel_dim, -1) @ u).movedim(-1, op.channel_dim)
