"""Columns of a table as numbers: categories one by one, and what stands for a missing cell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leanbayes.errors import require
from leanbayes.lab.data.labels import fits
from leanbayes.lab.tables import Table, is_number, read_cells

Array = npt.NDArray[np.float64]

_MISSING = {"", "?", "-", "na", "n/a", "nan", "none", "null"}


def is_missing(cell: str) -> bool:
    """Return whether a cell says that nothing is known."""
    return cell.strip().lower() in _MISSING


def has_gaps(cells: Sequence[str]) -> bool:
    """Return whether a cell says that nothing is known."""
    numbers = read_cells(cells)
    if numbers is not None and not bool(np.isnan(numbers).any()):
        return False
    return any(map(is_missing, cells))


@dataclass(frozen=True)
class InputColumn:
    """How a column of a table becomes numbers.

    Args:
        name: name of the column.
        levels: the categories it may hold, each of which becomes a number 0 or 1; empty for a
            column of numbers. A category that is not among them has zeros only.
        fill: stands for a missing number, with a second number 1 beside it; ``None`` where none
            may be missing.
    """

    name: str
    levels: tuple[str, ...] = ()
    fill: float | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """A name for each of its numbers."""
        if self.levels:
            return tuple(f"{self.name}={level}" for level in self.levels)
        return (self.name,) if self.fill is None else (self.name, f"{self.name} is missing")

    def encode(self, cells: Sequence[str], where: object) -> Array:
        """Return numbers ``[cells, parts]``; raise at a cell without a required number."""
        if self.levels:
            texts = np.asarray([cell.strip() for cell in cells])
            return (texts[:, None] == np.asarray(self.levels)[None]).astype(np.float64)
        whole = read_cells(cells)
        if self.fill is None and whole is not None and bool(fits(whole).all()):
            return whole[:, None]
        values = [math.nan if self.fill is not None and is_missing(c) else c for c in cells]
        for number, value in enumerate(values, 1):
            if isinstance(value, str) and not (is_number(value) and fits(float(value))):
                raise ValueError(
                    f"{where} has {value!r} in column {self.name!r}, example {number}; inputs are "
                    "finite numbers"
                )
        numbers = np.array([float(value) for value in values])
        if self.fill is None:
            return numbers[:, None]
        missing = np.isnan(numbers)
        return np.stack([np.where(missing, self.fill, numbers), missing], 1).astype(np.float64)


def encode_columns(
    columns: Sequence[InputColumn], cells: Sequence[Sequence[str]], where: object
) -> Array:
    """Return the numbers of several columns, beside each other."""
    return np.concatenate([c.encode(v, where) for c, v in zip(columns, cells, strict=True)], 1)


def place_columns(columns: Sequence[InputColumn], table: Table, path: Path) -> list[Any] | None:
    """Return the cells of these columns in a table: by their names, or else by their order.

    ``None`` if the table has none of the names, or no names, and not as many columns.
    """
    names = [column.name for column in columns]
    numbered = table.names == tuple(map(str, range(len(table.names))))
    if len(set(names)) == len(names) and not numbered and set(names) & set(table.names):
        for name in names:
            if name not in table.names:
                raise ValueError(
                    f"{path} has no column {name!r}, which the run was trained on; add it"
                )
            count = table.names.count(name)
            require(
                count == 1, f"{path} has {count} columns {name!r}; rename or remove all but one"
            )
        return [table[name] for name in names]
    return list(table.columns) if len(table.columns) == len(columns) else None
