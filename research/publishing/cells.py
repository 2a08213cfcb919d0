"""Rows of a table: our numbers, their standard errors, and what a paper prints in brackets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

from research.publishing.tables import markdown_table

ALWAYS_SHOWN = ("accuracy", "nll", "negative_elbo")
_METRICS = (*ALWAYS_SHOWN, "kl", "brier", "ece")
_MANY = 100_000


@dataclass(frozen=True)
class Cell:
    """One metric of one row.

    Args:
        ours: what our run measured, if it ran and has this metric.
        error: its standard error, over seeds if there are several and over test examples if there
            is one, as far as it is known.
        published: what the paper prints, if it does.
        seeds: how many trained networks it is of; ``None`` if nothing was trained for it.

    Example:
        >>> str(Cell(0.1312, 0.0034, 0.129))
        '0.1312 ± 0.0034 (0.129)'
    """

    ours: float | None = None
    error: float | None = None
    published: float | None = None
    seeds: int | None = None

    def __str__(self) -> str:
        if self.ours is None:
            measured = "–"
        elif isinstance(self.ours, int):
            measured = count(self.ours)
        elif not self.error or not math.isfinite(self.error):
            measured = f"{self.ours:.4g}"
        else:
            places = max(0, 1 - math.floor(math.log10(self.error)))
            measured = f"{self.ours:.{places}f} ± {self.error:.{places}f}"
        if self.published is None:
            return measured
        whole = isinstance(self.ours, int) or self.published >= _MANY
        printed = count(int(self.published)) if whole else f"{self.published:g}"
        return f"{measured} ({printed})"

    def percent(self, digits: int | None = None) -> Cell:
        """Return the same shares in percent, perhaps rounded to significant digits.

        Example:
            >>> str(Cell(0.9876, published=0.99).percent())
            '98.76 (99)'
        """
        values = (self.ours, self.error, self.published)
        percents = (None if value is None else 100 * value for value in values)
        if digits is not None:
            percents = (v if v is None else float(f"{v:.{digits}g}") for v in percents)
        ours, error, published = percents
        return replace(self, ours=ours, error=error, published=published)


def count(number: int) -> str:
    """Return the number with commas between thousands.

    Example:
        >>> count(484008)
        '484,008'
    """
    return f"{number:,}"


def with_error(value: float, error: float, digits: int) -> str:
    """Return a value and its standard error, which is never rounded to zero.

    Example:
        >>> with_error(0.3714, 0.0002, 3), with_error(200.0, 0.0, 1)
        ('0.371 ± <0.001', '200.0 ± 0')
    """
    least = 10.0**-digits
    shown = f"{error:.{digits}f}" if error >= least / 2 else f"<{least:.{digits}f}"
    return f"{value:.{digits}f} ± {shown if error else 0}"


def mean_with_error(values: Sequence[float], digits: int, factor: float = 1.0) -> str:
    """Return the mean of seeds and its standard error, or the value of one.

    Example:
        >>> mean_with_error([0.01, 0.03], 1, 100.0), mean_with_error([0.25], 2)
        ('2.0 ± 1.0', '0.25')
    """
    values = [factor * value for value in values]
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return with_error(fmean(values), stdev(values) / math.sqrt(len(values)), digits)


@dataclass(frozen=True)
class Row:
    """A published row, and the runs of its recipe if there are any.

    Args:
        name: of the recipe.
        title: what the row is.
        cells: metrics by name.
        budget: settings of the runs: ``paper``, ``cpu``, ``other``, or empty if not known.
        seeds: of the runs; their values are averaged.
    """

    name: str
    title: str
    cells: Mapping[str, Cell] = field(default_factory=dict)
    budget: str = ""
    seeds: tuple[int | None, ...] = ()

    @property
    def run(self) -> str:
        """The runs in a few words."""
        if not self.seeds:
            return "not run"
        known = [seeds_of(self.seeds)] if self.seeds != (None,) else []
        return ", ".join([self.budget] * bool(self.budget) + known) or "ran"


def seeds_of(seeds: Sequence[int | None]) -> str:
    """Return seeds in a few words.

    Example:
        >>> seeds_of([1, 2, 42]), seeds_of([42])
        ('3 seeds', 'seed 42')
    """
    return f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"


def differences(recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the parts of every recipe's title that not all of them have."""
    titles = [(each.get("published") or {}).get("row") or each["name"] for each in recipes]
    parts = [title.split(", ") for title in titles]
    common = set.intersection(*map(set, parts))
    return [
        ", ".join(part for part in own if part not in common) or title
        for title, own in zip(titles, parts, strict=True)
    ]


def errors_note(seeds: Iterable[int]) -> str:
    """Return what the standard errors of a table are over; empty without rows.

    Args:
        seeds: number of seeds of every row that ran.

    Example:
        >>> errors_note([3, 3]), errors_note([1])
        ('*± is a standard error over seeds.*', '*± is a standard error over test examples.*')
    """
    several = [number > 1 for number in seeds]
    if not several:
        return ""
    over = "seeds" if all(several) else "test examples"
    if any(several) and not all(several):
        over = "seeds in rows of several, over test examples in rows of one"
    return f"*± is a standard error over {over}.*"


def experiments(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of every experiment, which is what stands before the comma of a title.

    Example:
        >>> list(experiments([Row("a", "MLP on MNIST, full"), Row("b", "LSTM on IMDB, full")]))
        ['MLP on MNIST', 'LSTM on IMDB']
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.title.partition(",")[0], []).append(row)
    return groups


def merge_seeds(rows: Iterable[Row]) -> list[Row]:
    """One row for runs that differ in their seed alone: means with their errors over seeds."""
    alike: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        alike.setdefault((row.name, row.budget), []).append(row)
    return [_merged(group) for group in alike.values()]


def _merged(rows: Sequence[Row]) -> Row:
    cells = {
        name: replace(_over_seeds([row.cells[name] for row in rows]), published=cell.published)
        for name, cell in rows[0].cells.items()
    }
    return replace(rows[0], cells=cells, seeds=tuple(seed for row in rows for seed in row.seeds))


def _over_seeds(cells: Sequence[Cell]) -> Cell:
    """Return the mean, if every seed has the number."""
    if any(cell.ours is None for cell in cells):
        return Cell()
    return averaged([cell.ours for cell in cells], [cell.error for cell in cells])


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean, if all values are known.

    Example:
        >>> mean_of([1.0, 2.0]), mean_of([1.0, None])
        (1.5, None)
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return known[0] if len(set(known)) == 1 else fmean(known)


def averaged(values: Iterable[float | None], errors: Iterable[float | None] = ()) -> Cell:
    """The mean of the known values with its standard error; of one value, with its own error.

    Example:
        >>> str(averaged([1.0, 3.0])), str(averaged([1.0], [0.25])), str(averaged([]))
        ('2.0 ± 1.0', '1.00 ± 0.25', '–')
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Cell(known[0], next(iter(errors), None), seeds=1) if known else Cell()
    return Cell(mean_of(known), stdev(known) / math.sqrt(len(known)), seeds=len(known))


def about_equal(first: Cell, second: Cell) -> bool:
    """Return whether two numbers differ by at most two standard errors of their difference.

    Example:
        >>> about_equal(Cell(1.0, 0.1), Cell(1.2)), about_equal(Cell(1.0), Cell(1.2))
        (True, False)
    """
    spread = math.hypot(first.error or 0.0, second.error or 0.0)
    return abs((first.ours or 0.0) - (second.ours or 0.0)) <= 2 * spread


def rows_table(rows: Sequence[Row]) -> str:
    """Return the rows as a table: ours ± standard error, the published value in brackets."""
    shown = {name for row in rows for name, cell in row.cells.items() if cell != Cell()}
    metrics = [name for name in _METRICS if name in shown]
    metrics += sorted(shown.difference(_METRICS), key=_by_step)
    return markdown_table(
        ["row", "run", *(name.replace("_", " ") for name in metrics)],
        (
            [row.title, row.run, *(str(row.cells.get(name, Cell())) for name in metrics)]
            for row in rows
        ),
    )


def _by_step(metric: str) -> tuple[str, int]:
    """Metrics at a step come in the order of steps."""
    name, _, step = metric.rpartition("_")
    return (name, int(step)) if step.isdigit() else (metric, 0)
