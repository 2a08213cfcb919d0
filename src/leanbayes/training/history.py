"""The history of a training: one row of numbers per epoch, or the numbers that a log left."""

import csv
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from leanbayes.errors import require
from leanbayes.likelihoods import Likelihood


class History(Sequence[dict[str, float]]):
    """What :func:`leanbayes.fit` measured, one row per epoch.

    Attributes:
        likelihood: Likelihood of the outputs; pass it to :func:`leanbayes.predict`.
        interrupted: Whether the training was stopped by Ctrl-C.
    """

    def __init__(
        self, rows: Iterable[dict[str, float]] = (), likelihood: Likelihood | None = None
    ) -> None:
        self._rows = list(rows)
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

    def append(self, row: dict[str, float]) -> None:
        """Add the row of an epoch."""
        self._rows.append(row)

    def extend(self, rows: Iterable[dict[str, float]]) -> None:
        """Add the rows of several epochs."""
        self._rows.extend(rows)

    @overload
    def __getitem__(self, index: int) -> dict[str, float]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, float]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, float]]:
        return iter(self._rows)

    def __repr__(self) -> str:
        if not self._rows:
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
