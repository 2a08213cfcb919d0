"""Scale: how a positive standard deviation is stored, and where it starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.errors import require, require_choice, require_positive
from leanbayes.spec import Spec

__all__ = ["Scale"]

_SOFTPLUS_FLOOR = 1e-7


@dataclass(frozen=True)
class _Exp:
    rate: float = 1.0
    ceiling: float | None = None

    def __call__(self, raw: Tensor) -> Tensor:
        if self.ceiling is not None:
            raw = raw.clamp_max(math.log(self.ceiling) / self.rate)
        return (self.rate * raw).exp()

    def inverse(self, scale: Tensor) -> Tensor:
        return scale.log() / self.rate


@dataclass(frozen=True)
class _Softplus:
    ceiling: float | None = None

    def __call__(self, raw: Tensor) -> Tensor:
        if self.ceiling is not None:
            raw = raw.clamp_max(math.log(math.expm1(self.ceiling)))
        return F.softplus(raw) + _SOFTPLUS_FLOOR

    def inverse(self, scale: Tensor) -> Tensor:
        excess = (scale - _SOFTPLUS_FLOOR).clamp_min(torch.finfo(scale.dtype).tiny)
        return excess + torch.log(-torch.expm1(-excess))


@dataclass(frozen=True)
class _Abs:
    ceiling: float | None = None

    def __call__(self, raw: Tensor) -> Tensor:
        return raw.abs().clamp_max(math.inf if self.ceiling is None else self.ceiling)

    def inverse(self, scale: Tensor) -> Tensor:
        return scale


@dataclass(frozen=True)
class Scale(Spec):
    """How a standard deviation is stored, and where it starts.

    The published choices are all here: ``Scale(0.01, spread=0.001)`` for the mean field of the
    k-tied paper; ``Scale(1.234e-4, raw_spread=0.1, stored="softplus", ceiling=math.log(1.2))`` for
    its ResNet (a pre-softplus value of N(−9, 0.1), capped at log 0.2); ``Scale("fan_in",
    stored="signed")`` for variance layers; ``Scale(math.exp(-5), stored="log_variance")`` for the
    log σ² = −10 of sparse variational dropout.

    Args:
        start: the first value, or ``"fan_in"`` for a uniform draw from ±1/√in.
        spread: standard deviation of the first values around it.
        raw_spread: the same, of the stored tensor.
        stored: as its log, its log variance, before a softplus, or as a number whose absolute
            value counts (``"signed"``).
        ceiling: no standard deviation rises above it.

    Example:
        >>> float(Scale(0.5).transform(Scale(0.5).initial((2, 2), torch.zeros(1)))[0, 0])
        0.5
    """

    start: float | Literal["fan_in"] = 0.01
    spread: float = 0.0
    raw_spread: float = 0.0
    stored: Literal["log", "log_variance", "softplus", "signed"] = "log"
    ceiling: float | None = None

    def __post_init__(self) -> None:
        require_choice("stored", self.stored, ("log", "log_variance", "softplus", "signed"))
        if isinstance(self.start, str):
            require_choice("start", self.start, ("fan_in",))
            require(
                self.stored == "signed",
                "start='fan_in' draws signed numbers; use it with stored='signed'",
            )
        else:
            require_positive(start=self.start)
        if self.ceiling is not None:
            require_positive(ceiling=self.ceiling)
        for name in ("spread", "raw_spread"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"{name} is {value}; it must not be negative")

    @staticmethod
    def of(scale: float | Scale) -> Scale:
        """A number becomes a log-stored scale that starts there."""
        return scale if isinstance(scale, Scale) else Scale(float(scale))

    @property
    def transform(self) -> Callable[[Tensor], Tensor]:
        """The function from the stored tensor to the standard deviation."""
        return self._transform

    @property
    def _transform(self) -> _Exp | _Softplus | _Abs:
        if self.stored == "softplus":
            return _Softplus(self.ceiling)
        if self.stored == "signed":
            return _Abs(self.ceiling)
        return _Exp(0.5 if self.stored == "log_variance" else 1.0, self.ceiling)

    def initial(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """The first stored tensor.

        Args:
            shape: its shape; the last dimension is the fan-in.
            like: gives dtype and device.
        """
        empty = torch.empty(tuple(shape), dtype=like.dtype, device=like.device)
        if isinstance(self.start, str):
            bound = 1 / math.sqrt(shape[-1])
            return empty.uniform_(-bound, bound)
        value = torch.full_like(empty, self.start)
        if self.spread:
            value = (value + self.spread * torch.randn_like(value)).clamp_min(1e-3 * self.start)
        return self._transform.inverse(value) + self.raw_spread * torch.randn_like(value)
