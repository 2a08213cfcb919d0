"""Tables of text, one line per row: the one reader and the one writer of CSV files."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from leanbayes.errors import require
from leanbayes.lab.files import reading, write_text

_FORMULA = re.compile("'*[=+@\t\r\n\uff1d\uff0b\uff20\uff0d-]")
"""How a text begins that a spreadsheet would run; one that begins so behind quotes is quoted too,
so that reading takes away what writing put there."""


@dataclass(frozen=True)
class Table:
    """Cells as text, by column."""

    names: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.columns[0]) if self.columns else 0

    def __getitem__(self, name: str) -> tuple[str, ...]:
        """Return the first column of this name."""
        return self.columns[self.names.index(name)]


def read_table(path: Path, *, delimiter: str | None = ",", named: bool | None = True) -> Table:
    """Read a file with one row per line and as many cells in every row; empty lines are skipped.

    A quote that :func:`write_table` put before a text is taken away.

    Args:
        path: the file, in UTF-8 with or without a mark of it.
        delimiter: character between cells; None finds out by the first line whether that is a
            comma, a semicolon or a tab.
        named: whether the first line holds the names of the columns; None lets it tell: with a
            number in it, it holds none, and columns are called by their numbers.
    """
    rows = [row for row in _rows(path, delimiter) if row]
    require(bool(rows), f"{path} is empty")
    if set(map(len, rows)) != {len(rows[0])}:
        number, row = next((n, r) for n, r in enumerate(rows, 1) if len(r) != len(rows[0]))
        raise ValueError(
            f"{path} has {len(row)} values in row {number}, not {len(rows[0])} as in the first"
        )
    names = tuple(name.strip() for name in rows[0])
    if named is None and any(map(is_number, names)):
        names = tuple(map(str, range(len(names))))
    else:
        rows = rows[1:]
    return Table(names, tuple(zip(*rows, strict=True)) if rows else ((),) * len(names))


def _rows(path: Path, delimiter: str | None) -> list[tuple[str, ...]]:
    """Return the cells of every line; a file that is not UTF-8 text is refused."""
    content = path.read_bytes()
    remedy = "save it as text in UTF-8 (CSV UTF-8 in a spreadsheet)"
    require(not content.startswith((b"\xff\xfe", b"\xfe\xff")), f"{path} is UTF-16; {remedy}")
    require(b"\0" not in content, f"{path} has NUL bytes, so it is not a text table; {remedy}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path} is truncated or damaged: line {line} is not UTF-8; {remedy}"
        ) from error
    try:
        delimiter = delimiter or _delimiter(text)
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        # tuples, because the garbage collector visits a million lists again and again
        quoted = "'" in text
        return [tuple(map(_unquoted, row)) if quoted else tuple(row) for row in rows]
    except csv.Error as error:
        raise ValueError(
            f"{path} cannot be read as a table ({error}); look for a quote without its second"
        ) from error


def _delimiter(text: str) -> str:
    """Return the delimiter that makes the most cells of the first line; a comma if several do."""
    first = text.lstrip("\r\n").partition("\n")[0]
    return max(",;\t", key=lambda each: len(next(csv.reader([first], delimiter=each), ())))


def read_numbers(path: Path) -> dict[str, list[float]]:
    """Read a table of numbers under names; an empty cell is NaN."""
    table = read_table(path)
    with reading(path):
        return {
            name: [float(cell) if cell else math.nan for cell in column]
            for name, column in zip(table.names, table.columns, strict=True)
        }


def write_table(path: str | Path, columns: Mapping[str, Sequence[object]]) -> Path:
    """Write columns of equal length under their names; numbers keep all their digits.

    A text that a spreadsheet would take for a formula gets a quote before it.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(map(_quoted, columns))
    for row in zip(*columns.values(), strict=True):
        writer.writerow(map(_quoted, row))
    return write_text(path, text.getvalue())


def _quoted(cell: object) -> object:
    if isinstance(cell, str) and _FORMULA.match(cell) and not is_number(cell):
        return f"'{cell}"
    return cell


def _unquoted(cell: str) -> str:
    quoted = cell.startswith("'") and _FORMULA.match(cell[1:])
    return cell[1:] if quoted and not is_number(cell[1:]) else cell


def read_cells(cells: Sequence[str]) -> npt.NDArray[np.float64] | None:
    """Return the numbers of all cells at once; ``None`` if a cell has none."""
    if "_" in "".join(cells):
        return None
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None


def is_number(text: str) -> bool:
    """Return whether a text is a number; Python's ``1_0`` is not one to anybody else."""
    if "_" in text:
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True
