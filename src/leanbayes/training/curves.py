"""Curves of a training: where they began and ended, and how much of that may be chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.errors import require

ERRORS = 4.0
"""How many standard errors a difference must be to count."""
FEWEST = 8
_BLOCKS = 20


@dataclass(frozen=True)
class Curves:
    """Curves of a training."""

    objective: Tensor
    nll: Tensor | None
    kl: Tensor | None
    weight: float

    @classmethod
    def of(cls, numbers: Mapping[str, Tensor]) -> Curves:
        """Take the numbers of all entries."""
        nll, divergence = numbers.get("nll"), numbers.get("kl")
        weight = float(numbers["weight"][-1]) if "weight" in numbers else 1.0
        if nll is not None and divergence is not None:
            objective = nll + weight * divergence
        elif "loss" in numbers:
            objective = numbers["loss"]
        else:
            given = ", ".join(numbers) or "no numbers"
            raise ValueError(f"history has {given}; give nll and kl, or loss")
        require(len(objective) > 0, f"history has 0 entries; give at least {FEWEST} of them")
        return cls(objective, nll, divergence, weight)

    @property
    def is_long(self) -> bool:
        """Whether there are enough entries to judge the course of the training."""
        return len(self.objective) >= FEWEST

    @property
    def summary(self) -> str:
        """Where the curves began and ended."""
        entries = f"In {len(self.objective)} entries"
        if self.nll is None or self.kl is None:
            begin, end = ends(self.objective)
            return f"{entries} the loss went from {begin:.2g} to {end:.2g}."
        (nll, last_nll), (divergence, last_kl) = ends(self.nll), ends(self.kl)
        counts = "" if self.weight == 1 else f", which counts {self.weight:g} times"
        return (
            f"{entries} the NLL went from {nll:.2g} to {last_nll:.2g} and the KL "
            f"from {divergence:.2g} to {last_kl:.2g} nats per example{counts}."
        )


def last_share(curve: Tensor) -> float:
    """Return the share of all progress that the last quarter brought; 0 if that may be chance."""
    third, fourth = curve.tensor_split(4)[2:]
    drop = float(third.mean() - fourth.mean())
    chance = sum(float(part.var()) / len(part) for part in (third, fourth)) ** 0.5
    begin, end = ends(curve)
    return drop / (begin - end) if drop > ERRORS * chance and begin > end else 0.0


def blocks(curve: Tensor) -> Tensor:
    """Return averages over twenty blocks, or all entries if there are fewer."""
    return torch.stack([part.mean() for part in curve.tensor_split(min(_BLOCKS, len(curve)))])


def ends(curve: Tensor) -> tuple[float, float]:
    """Return the averages of the first and the last block."""
    averages = blocks(curve)
    return float(averages[0]), float(averages[-1])


def rise(curve: Tensor) -> tuple[float, float, float]:
    """Return the best block, the last one, and what lies between them beyond chance."""
    averages = blocks(curve)
    best, last = float(averages.min()), float(averages[-1])
    return best, last, last - best - ERRORS * _error(curve)


def _error(curve: Tensor) -> float:
    """Return the standard error of the last block, from the differences of neighbors in it."""
    part = curve.tensor_split(min(_BLOCKS, len(curve)))[-1]
    if len(part) < 3:
        return 0.0
    return float(part.diff().square().mean() / 2) ** 0.5 / len(part) ** 0.5
