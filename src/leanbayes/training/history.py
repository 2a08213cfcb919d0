"""The history of a training: one row of numbers per epoch."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from leanbayes.likelihoods import Likelihood


class History(Sequence[dict[str, float]]):
    """What :func:`leanbayes.fit` measured, one row per epoch.

    Attributes:
        likelihood: What the outputs mean; pass it to :func:`leanbayes.predict`.
        interrupted: Whether the training was stopped by Ctrl-C.

    Example:
        >>> history = History([{"epoch": 1, "nll": 0.5, "validation_nll": 0.625}])
        >>> history.best_epoch
        1
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
