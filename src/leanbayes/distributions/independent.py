"""Independent weights: location and scale, scales of low rank (k-tied), and some forced to zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from leanbayes.distributions.base import ENTROPY_OF_UNIT_NORMAL, Moments, WeightDistribution
from leanbayes.ops import LinearOp

_SMALLEST_WEIGHT = 1e-8  # a dropout weight at zero keeps a scale, and so a finite KL
NoiseName = Literal["normal", "bernoulli", "uniform"]


_DRAW: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": torch.randn_like,
    "uniform": lambda like: (torch.rand_like(like) * 2 - 1) * math.sqrt(3),
    "bernoulli": lambda like: torch.randint_like(like, 2) * 2 - 1,
}
_ENTROPY = {"normal": ENTROPY_OF_UNIT_NORMAL, "uniform": math.log(2 * math.sqrt(3))}


class LocationScale(WeightDistribution):
    """Independent weights with means ``loc`` and standard deviations ``scale``.

    ``noise`` has mean zero and variance one: ``"normal"``; ``"bernoulli"``, a fair sign; or
    ``"uniform"`` on ``(−√3, √3)``. The variance layers of *Variance Networks* [variance, eq. 4 and
    section 3.3] are ``loc=None``; the ``θ`` of its uniform layer is ``√3 · scale``.

    Args:
        loc: the means ``[out, in]``; ``None`` for zero.
        scale: the standard deviations, broadcastable to ``[out, in]``.
        noise: the kind of noise.
        log_unit: if given, the standard deviations are ``exp(scale + log_unit)``.
        log_alpha: ``log(scale² / loc²)`` where it is known better than the ratio tells
            (see :meth:`multiplicative`).
        validate_args: check that the parameters are finite.
    """

    sign_symmetric = True

    def __init__(
        self,
        loc: Tensor | None,
        scale: Tensor,
        noise: NoiseName = "normal",
        *,
        log_unit: float | None = None,
        log_alpha: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if noise not in _DRAW:
            raise ValueError(f"noise {noise!r} is unknown; choose one of {', '.join(_DRAW)}")
        shape = scale.shape if loc is None else torch.broadcast_shapes(loc.shape, scale.shape)
        if loc is not None and loc.shape != shape:
            raise ValueError(
                f"scale has shape {tuple(scale.shape)}, which does not broadcast to the means "
                f"{tuple(loc.shape)}"
            )
        self.loc = loc
        self.given_scale, self.log_unit = scale.expand(shape), log_unit
        self._scale: Tensor | None = None
        self.noise = noise
        self.log_alpha = log_alpha
        self.normal_marginals = noise == "normal"
        self.discrete = noise == "bernoulli"
        super().__init__(shape, validate_args=validate_args)

    @classmethod
    def multiplicative(
        cls, loc: Tensor, log_alpha: Tensor, *, validate_args: bool | None = None
    ) -> LocationScale:
        """Return Gaussian dropout ``N(loc, α loc²)``; α may broadcast [variance, eq. 5 and 14]."""
        scale = (0.5 * log_alpha).exp() * loc.abs().clamp_min(_SMALLEST_WEIGHT)
        return cls(loc, scale, log_alpha=log_alpha, validate_args=validate_args)

    @property
    def scale(self) -> Tensor:
        """The standard deviations ``[out, in]``, made from their logarithms at the first use."""
        if self.log_unit is None:
            return self.given_scale
        if self._scale is None:
            self._scale = (self.given_scale + self.log_unit).exp()
        return self._scale

    @property
    def mean(self) -> Tensor:
        return torch.zeros_like(self.given_scale) if self.loc is None else self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    def columns(self, index: Tensor) -> LocationScale:
        """Return the law of some columns of the matrix, as rows."""
        loc = None if self.loc is None else self.loc.mT.index_select(0, index)
        scale = self.given_scale.mT.index_select(0, index)
        return LocationScale(loc, scale, self.noise, log_unit=self.log_unit, validate_args=False)

    def draw(self, sample_shape: Sequence[int] = ()) -> Tensor:
        e = _DRAW[self.noise](self.scale.new_empty(*sample_shape, *self.event_shape))
        return self.scale * e if self.loc is None else torch.addcmul(self.loc, self.scale, e)

    def entropies(self) -> Tensor:
        if self.discrete:
            raise NotImplementedError(f"{self.noise} noise has no density, so no entropy")
        return self.scale.abs().log() + _ENTROPY[self.noise]

    def log_prob(self, value: Tensor) -> Tensor:
        if self.discrete:
            raise NotImplementedError(f"{self.noise} noise has no density")
        z = (value - self.mean) / self.scale
        if self.normal_marginals:
            surprise = 0.5 * z.square() - 0.5
        else:
            surprise = torch.where(z.abs() > math.sqrt(3), math.inf, torch.zeros_like(z))
        return -(self.entropies() + surprise).sum((-2, -1))

    def log_inverse_alpha(self) -> Tensor:
        if self.loc is None:  # also where a signed scale has come to exactly zero
            return 0.0 * self.scale + math.log(torch.finfo(self.scale.dtype).tiny)
        if self.log_alpha is None:
            return super().log_inverse_alpha()
        return (-self.log_alpha).expand(self.event_shape)

    def moments(self, x: Tensor, op: LinearOp) -> Moments:
        variance = op(op.square(x), self.variance)
        mean = variance.new_zeros(()) if self.loc is None else op(x, self.loc)
        return Moments(mean, variance)


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
