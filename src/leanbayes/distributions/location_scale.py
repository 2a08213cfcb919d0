"""Independent weights ``w = loc + scale · ε``: mean field, variance layers, Gaussian dropout."""

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


def _rademacher(like: Tensor) -> Tensor:
    return torch.randint_like(like, 2) * 2 - 1


def _uniform(like: Tensor) -> Tensor:
    return (torch.rand_like(like) * 2 - 1) * math.sqrt(3)


_DRAW: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": torch.randn_like,
    "uniform": _uniform,
    "bernoulli": _rademacher,
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
