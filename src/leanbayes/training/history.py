"""The history of a training: one row of numbers per epoch, or the numbers of a log; its curves."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leanbayes.errors import require
from leanbayes.likelihoods import Likelihood


class History(list[dict[str, float]]):
    """Measurements of :func:`leanbayes.fit`, one row per epoch.

    Attributes:
        likelihood: Likelihood of the outputs; pass it to :func:`leanbayes.predict`.
        interrupted: Whether the training was stopped by Ctrl-C.
    """

    def __init__(
        self, rows: Iterable[dict[str, float]] = (), likelihood: Likelihood | None = None
    ) -> None:
        super().__init__(rows)
        self.likelihood = likelihood
        self.interrupted = False

    @property
    def best_epoch(self) -> int | None:
        """The epoch with the lowest validation NLL; ``None`` without validation data."""
        seen = [(row["validation_nll"], row["epoch"]) for row in self if "validation_nll" in row]
        return int(min(seen)[1]) if seen else None

    @property
    def validations_since_best(self) -> int:
        """How often the model was validated after its best epoch, and not better."""
        best = self.best_epoch
        return sum("validation_nll" in row for row in self[best:]) if best else 0

    def __repr__(self) -> str:
        if not self:
            return "History of 0 epochs"
        last = ", ".join(f"{name} {self[-1][name]:.3f}" for name in self[-1] if name in _SHOWN)
        best = f"; best epoch {self.best_epoch}" if self.best_epoch else ""
        stopped = "; interrupted" if self.interrupted else ""
        return f"History of {len(self)} epochs: {last}{best}{stopped}"


_SHOWN = ("nll", "kl", "validation_nll", "validation_accuracy")


Log = str | Path | Mapping[str, Sequence[Any]] | Iterable[Any]

_NAMES = {
    "nll": ("nll", "train/nll", "train_nll"),
    "kl": ("kl", "train/kl", "train_kl"),
    "weight": ("weight", "kl_weight"),
    "loss": ("loss", "train/loss", "train_loss"),
    "validation": ("validation/nll", "validation_nll", "val/nll", "val_nll"),
}
"""What numbers of a training are called: in a loop, by Lightning and in runs."""


def read_history(history: Log) -> dict[str, Tensor]:
    """Return the known numbers of a training, by what they are; blanks are left out."""
    if isinstance(history, str | Path):
        with open(history, encoding="utf-8", newline="") as file:
            return read_history(list(csv.DictReader(file)))
    if isinstance(history, Mapping):
        columns = {str(name): list(values) for name, values in history.items()}
    else:
        columns = {}
        for entry in history:
            for name, value in _entry(entry).items():
                columns.setdefault(name, []).append(value)
    known = {}
    for what, names in _NAMES.items():
        for name in names:
            if name in columns:
                known[what] = torch.tensor(
                    [_number(v) for v in columns[name] if v not in (None, "")], dtype=torch.float64
                )
                break
    lengths = {what: len(known[what]) for what in ("nll", "kl") if what in known}
    require(len(set(lengths.values())) < 2, f"history has unequal numbers of entries: {lengths}")
    return known


def _entry(entry: Any) -> Mapping[str, Any]:
    if isinstance(entry, Mapping):
        return entry
    if isinstance(entry, tuple) and "_asdict" in dir(entry):
        fields: Mapping[str, Any] = entry._asdict()  # type: ignore[attr-defined]
        return fields
    raise TypeError(
        f"an entry of the history is a {type(entry).__name__}; give what lb.elbo gives, or "
        "dictionaries with nll, kl and weight"
    )


def _number(value: Any) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else float(value)


class ProgressLine:
    """A line on the terminal that is rewritten while work goes on."""

    _SECONDS = 0.2

    def __init__(self, total: int, done: int = 0, visible: bool | None = None) -> None:
        self.total, self.done, self._first = total, done, done
        self.visible = sys.stderr.isatty() if visible is None else visible
        self._started = time.monotonic()
        self._shown, self._width = 0.0, 0

    def step(self, text: str) -> None:
        """Count one step and show the text, several times per second."""
        self.done += 1
        now = time.monotonic()
        if self.visible and (now - self._shown >= self._SECONDS or self.done == self.total):
            self._shown = now
            share = self.done / self.total
            left = (now - self._started) / (self.done - self._first) * (self.total - self.done)
            line = f"{100 * share:3.0f}% {text}, {_duration(left)} left"
            self._width = max(self._width, len(line))
            print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the line."""
        if self.visible and self._width:
            print(file=sys.stderr)


def _duration(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    unit, size = ("min", 60) if seconds < 3600 else ("h", 3600)
    whole, rest = divmod(int(seconds), size)
    return f"{whole}:{rest * 60 // size:02d} {unit}"


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
