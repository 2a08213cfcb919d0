"""Scale: how a positive standard deviation is stored, and where it starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from leanbayes.errors import require, require_choice, require_positive
from leanbayes.parameters.learned import Abs, Exp, Softplus, Stored, Transform
from leanbayes.precision import wide_dtype
from leanbayes.spec import Spec


@dataclass(frozen=True)
class Scale(Spec):
    """Storage and first value of a standard deviation.

    The published choices are all here: ``Scale(0.01, spread=0.001)`` for the mean field of the
    k-tied paper; ``Scale(1.234e-4, raw_spread=0.1, stored="softplus", ceiling=math.log(1.2))`` for
    its ResNet (a pre-softplus value of N(−9, 0.1), capped at log 0.2); ``Scale("fan_in",
    stored="signed")`` for variance layers; ``Scale(math.exp(-5), stored="log_variance")`` for the
    log σ² = −10 of sparse variational dropout.

    Args:
        start: the first value, or ``"fan_in"`` for a uniform draw from ±1/√in.
        spread: standard deviation of the first values around it.
        raw_spread: the same, of the stored tensor.
        stored: storage as log or log variance, both relative to ``start``, so that weight decay
            pulls it there; before a softplus, or as a number whose absolute value counts
            (``"signed"``): weight decay pulls these to log 2 and to 0.
        ceiling: no standard deviation rises above it.
        by_fan_in: divide ``start`` by the square root of the fan-in.

    Raises:
        ValueError: If an option is unknown or out of range.
    """

    start: float | Literal["fan_in"] = 0.01
    spread: float = 0.0
    raw_spread: float = 0.0
    stored: Literal["log", "log_variance", "softplus", "signed"] = "log"
    ceiling: float | None = None
    by_fan_in: bool = False

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
        """Convert a number to a log-stored scale that starts there."""
        return scale if isinstance(scale, Scale) else Scale(float(scale))

    def for_fan_in(self, fan_in: int) -> Scale:
        """Return the scale of a layer in which so many weights are added up in one output.

        Example:
            >>> Scale(0.5, by_fan_in=True).for_fan_in(25).start
            0.1
        """
        if not self.by_fan_in or isinstance(self.start, str):
            return self
        return replace(self, start=self.start / math.sqrt(fan_in), by_fan_in=False)

    @property
    def transform(self) -> Transform:
        """From the stored tensor to the standard deviation."""
        if self.stored == "softplus":
            return Softplus(self.ceiling)
        if self.stored == "signed":
            return Abs(self.ceiling)
        assert not isinstance(self.start, str)
        return Exp(0.5 if self.stored == "log_variance" else 1.0, self.ceiling, self.start)

    def initial(self, shape: Sequence[int], like: Tensor, fan_in: int | None = None) -> Stored:
        """Return the first standard deviations, as they are stored.

        Args:
            shape: their shape.
            like: source of the dtype and device.
            fan_in: number of weights that one output adds up; by default the last dimension.
        """
        if self.by_fan_in:
            return self.for_fan_in(fan_in or shape[-1]).initial(shape, like)
        transform = self.transform
        empty = torch.empty(tuple(shape), dtype=wide_dtype(like.dtype), device=like.device)
        if isinstance(self.start, str):
            bound = 1 / math.sqrt(fan_in or shape[-1])
            return Stored(empty.uniform_(-bound, bound).to(like.dtype), transform)
        value = torch.full_like(empty, self.start)
        if self.spread:
            value = (value + self.spread * torch.randn_like(value)).clamp_min(1e-3 * self.start)
        first = transform.inverse(value) + self.raw_spread * torch.randn_like(value)
        return Stored(first.to(like.dtype), transform)
