"""Transforms: from the tensor that is stored to the one that is meant, and back."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.ops import LinearOp

_SOFTPLUS_FLOOR = 1e-7


class Transform(Protocol):
    """A function of a stored tensor, and its inverse."""

    def __call__(self, stored: Tensor, /) -> Tensor: ...

    def inverse(self, value: Tensor, /) -> Tensor:
        """A stored tensor that gives this value."""


@dataclass(frozen=True)
class Exp:
    """``unit · exp(rate · stored)``, at most ``ceiling``; a log variance has rate ½.

    The unit is where a scale starts: zero is stored then, and weight decay pulls back to it.
    """

    rate: float = 1.0
    ceiling: float | None = None
    unit: float = 1.0

    @property
    def origin(self) -> float:
        """What would be stored for the unit if the unit were 1."""
        return math.log(self.unit) / self.rate

    def __call__(self, stored: Tensor, /) -> Tensor:
        if self.ceiling is not None:
            stored = stored.clamp_max(math.log(self.ceiling) / self.rate - self.origin)
        if self.unit == 1:
            return (stored if self.rate == 1 else self.rate * stored).exp()
        absolute = stored + self.origin
        return (absolute if self.rate == 1 else absolute.mul_(self.rate)).exp_()

    def inverse(self, value: Tensor, /) -> Tensor:
        return value.log() / self.rate - self.origin


@dataclass(frozen=True)
class Softplus:
    """``log(1 + exp(stored))``, at most ``ceiling``, and never quite zero."""

    ceiling: float | None = None

    def __call__(self, stored: Tensor, /) -> Tensor:
        if self.ceiling is not None:
            stored = stored.clamp_max(math.log(math.expm1(self.ceiling)))
        return F.softplus(stored) + _SOFTPLUS_FLOOR

    def inverse(self, value: Tensor, /) -> Tensor:
        excess = (value - _SOFTPLUS_FLOOR).clamp_min(torch.finfo(value.dtype).tiny)
        return excess + torch.log(-torch.expm1(-excess))


@dataclass(frozen=True)
class Abs:
    """``|stored|``, at most ``ceiling``."""

    ceiling: float | None = None

    def __call__(self, stored: Tensor, /) -> Tensor:
        scale = stored.abs()
        return scale if self.ceiling is None else scale.clamp_max(self.ceiling)

    def inverse(self, value: Tensor, /) -> Tensor:
        return value


@dataclass(frozen=True)
class Clamp:
    """The stored number plus ``origin``, where it starts, kept between ``low`` and ``high``."""

    low: float
    high: float
    origin: float = 0.0

    def __call__(self, stored: Tensor, /) -> Tensor:
        return (stored + self.origin).clamp(self.low, self.high)

    def inverse(self, value: Tensor, /) -> Tensor:
        return value - self.origin


@dataclass(frozen=True)
class AsMatrix:
    """A weight that is stored in torch's own shape, seen as the matrix ``[out, in]`` of an op."""

    op: LinearOp

    def __call__(self, stored: Tensor, /) -> Tensor:
        return self.op.matrix(stored)

    def inverse(self, value: Tensor, /) -> Tensor:
        return self.op.unmatrix(value)
