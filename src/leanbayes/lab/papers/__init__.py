"""The papers' tables: our runs next to the published rows, from files and never from memory.

A row is a recipe whose ``published`` names the paper; a run belongs to it by the recipe's name.
What stands before the comma of a row's title is its experiment: rows of one make one table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leanbayes.errors import nearest
from leanbayes.lab.files import read_object
from leanbayes.lab.recipe import Budget, Recipe, check_recipe
from leanbayes.lab.recipe_files import RECIPES, parse_yaml, read_recipe

__all__ = [
    "PAPERS",
    "Cell",
    "Row",
    "experiments",
    "find_results",
    "markdown",
    "mean_of",
    "merge_seeds",
    "seeds_of",
    "table",
    "text",
]

PAPERS: Mapping[str, str] = {
    "k_tied": "The k-tied Normal distribution [k-tied]",
    "variance": "Variance networks [variance]",
    "matrix_normal": "Matrix-normal posteriors and sparsity [matrix normal]",
    "rank1": "Rank-1 Bayesian neural networks [rank-1]",
}
"""Every paper by the name that recipes use."""

_ALWAYS_SHOWN = ("accuracy", "nll", "negative_elbo")
_METRICS = (*_ALWAYS_SHOWN, "kl", "brier", "ece")
_BUDGETS: tuple[Budget, ...] = ("paper", "cpu")
_PROBED = ("snr_", "negative_elbo_")
_MANY = 100_000
_NOT_RUN, _NONE = "not run", "–"


@dataclass(frozen=True)
class Cell:
    """One metric of one row.

    Args:
        ours: what our run measured, if it ran and has this metric.
        error: its standard error over test examples, if there is one.
        published: what the paper prints, if it does.

    Example:
        >>> str(Cell(0.1312, 0.0034, 0.129))
        '0.1312 ± 0.0034 (0.129)'
    """

    ours: float | None = None
    error: float | None = None
    published: float | None = None

    def __str__(self) -> str:
        if self.ours is None:
            measured = _NONE
        elif isinstance(self.ours, int):
            measured = _count(self.ours)
        elif not self.error or not math.isfinite(self.error):
            measured = f"{self.ours:.4g}"
        else:
            places = max(0, 1 - math.floor(math.log10(self.error)))
            measured = f"{self.ours:.{places}f} ± {self.error:.{places}f}"
        if self.published is None:
            return measured
        whole = isinstance(self.ours, int) or self.published >= _MANY
        printed = _count(int(self.published)) if whole else f"{self.published:g}"
        return f"{measured} ({printed})"


def _count(number: int) -> str:
    """The number with its thousands apart."""
    return f"{number:,}".replace(",", " ")


@dataclass(frozen=True)
class Row:
    """A published row, and one run of its recipe if there is any.

    Args:
        name: of the recipe.
        title: what the paper's row is.
        cells: metrics by name.
        ran: whether there is a run.
        budget: settings of the run: ``paper``, ``cpu``, ``other``, or empty if not known.
        seed: of the run.
        seeds: how many runs the values are the mean of.
        note: what to know about the published row.
        cut: what the ``cpu`` budget leaves out, for a run under it.
    """

    name: str
    title: str
    cells: Mapping[str, Cell] = field(default_factory=dict)
    ran: bool = False
    budget: str = ""
    seed: int | None = None
    seeds: int = 1
    note: str = ""
    cut: str = ""

    @property
    def run(self) -> str:
        """The run in a few words."""
        if not self.ran:
            return _NOT_RUN
        words = [self.budget] if self.budget else []
        if self.seeds > 1 or self.seed is not None:
            words.append(seeds_of(self.seeds, self.seed))
        return ", ".join(words) or "ran"


@dataclass(frozen=True)
class _Run:
    """A result and, where it lies beside it, the recipe it came from."""

    result: Mapping[str, Any]
    recipe: Recipe | None = None


def table(paper: str, runs: Sequence[str | Path], recipes: str | Path = RECIPES) -> list[Row]:
    """The rows of a paper in the order of its recipes: every run of each, or that it was not run.

    Args:
        paper: one of :data:`PAPERS`.
        runs: run folders, folders of such, or files of results; see :func:`find_results`.
        recipes: the folder that holds the papers' recipes.
    """
    if paper not in PAPERS:
        raise ValueError(f"paper {paper!r} is unknown{nearest(paper, PAPERS)}")
    by_name: dict[str, list[_Run]] = {}
    for path in find_results(runs):
        run = _read(path)
        by_name.setdefault(str(run.result["name"]), []).append(run)
    return list(_rows(paper, by_name, Path(recipes)))


def experiments(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of every experiment, in their order.

    Example:
        >>> list(experiments([Row("a", "MLP on MNIST, full"), Row("b", "LSTM on IMDB, full")]))
        ['MLP on MNIST', 'LSTM on IMDB']
    """
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.title.partition(",")[0], []).append(row)
    return found


def merge_seeds(rows: Sequence[Row]) -> list[Row]:
    """One row for runs that differ in their seed alone: the mean of values and of errors."""
    alike: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        alike.setdefault((row.name, row.budget), []).append(row)
    return [_merged(group) if len(group) > 1 else group[0] for group in alike.values()]


def seeds_of(count: int, first: int | None) -> str:
    """The seeds of a row in a few words.

    Example:
        >>> seeds_of(3, 42), seeds_of(1, 42)
        ('3 seeds', 'seed 42')
    """
    return f"{count} seeds" if count > 1 else f"seed {first}"


def _merged(rows: Sequence[Row]) -> Row:
    cells = {
        name: replace(
            cell,
            ours=mean_of([row.cells[name].ours for row in rows]),
            error=mean_of([row.cells[name].error for row in rows]),
        )
        for name, cell in rows[0].cells.items()
    }
    return replace(rows[0], cells=cells, seed=None, seeds=len(rows))


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean, if all values are known.

    Example:
        >>> mean_of([1.0, 2.0]), mean_of([1.0, None])
        (1.5, None)
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return known[0] if len(set(known)) == 1 else sum(known) / len(known)


def find_results(paths: Iterable[str | Path]) -> list[Path]:
    """Files of results: ``result.json`` of run folders, however deep, or any file that is named.

    A folder without run folders gives all its ``*.json``.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; give run folders or files of results")
        inside = [path] if path.is_file() else sorted(path.rglob("result.json"))
        found.update(dict.fromkeys(inside or sorted(path.glob("*.json"))))
    return list(found)


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown: ours ± standard error, the published value in brackets."""
    header, *lines = _grid(rows)
    rule = ["---"] * len(header)
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, rule, *lines))


def text(rows: Sequence[Row]) -> str:
    """The same in columns, for a terminal."""
    grid = _grid(rows)
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        + "\n"
        for line in grid
    )


def _grid(rows: Sequence[Row]) -> list[list[str]]:
    shown = {name for row in rows for name, cell in row.cells.items() if cell != Cell()}
    metrics = [name for name in _METRICS if name in shown]
    metrics += sorted(shown.difference(_METRICS), key=_by_step)
    header = ["row", "run", *(name.replace("_", " ") for name in metrics)]
    return [header] + [
        [row.title, row.run, *(str(row.cells.get(name, Cell())) for name in metrics)]
        for row in rows
    ]


def _by_step(metric: str) -> tuple[str, int]:
    """Metrics at a step come in the order of steps."""
    name, _, step = metric.rpartition("_")
    return (name, int(step)) if step.isdigit() else (metric, 0)


def _rows(paper: str, runs: Mapping[str, list[_Run]], folder: Path) -> Iterator[Row]:
    files = sorted((folder / paper).glob("*.yaml"), key=lambda file: file.stem)
    if not files:
        raise FileNotFoundError(f"{folder / paper} holds no recipes; say where they are")
    for file in files:
        budgets = {budget: read_recipe(file, budget=budget) for budget in _BUDGETS}
        mine: Sequence[_Run | None] = runs.get(budgets["paper"].name) or (None,)
        yield from (_row(budgets, run) for run in mine)


def _row(budgets: Mapping[Budget, Recipe], run: _Run | None) -> Row:
    recipe = budgets["paper"]
    published = recipe.published
    values = published.values if published else {}
    measured: dict[str, Any] = dict(run.result["metrics"]) if run else {}
    if run and "parameters" in run.result:
        measured["parameters"] = {"value": sum(run.result["parameters"].values())}
    cells = {
        name: Cell(
            measured.get(name, {}).get("value"),
            measured.get(name, {}).get("error"),
            values.get(name),
        )
        for name in dict.fromkeys(
            (*_ALWAYS_SHOWN, "kl", "parameters", *values, *filter(_is_probed, measured))
        )
    }
    budget = _budget_of(run, budgets)
    return Row(
        name=recipe.name,
        title=published.row if published else recipe.name,
        cells=cells,
        ran=run is not None,
        budget=budget,
        seed=run.result.get("seed") if run else None,
        note=published.note if published else "",
        cut=budgets["cpu"].cut if budget == "cpu" else "",
    )


def _is_probed(metric: str) -> bool:
    return metric.startswith(_PROBED)


def _budget_of(run: _Run | None, budgets: Mapping[Budget, Recipe]) -> str:
    """Under which settings a run was made, whatever its seed."""
    if run is None or run.recipe is None:
        return ""
    settings = {budget: _settings(recipe) for budget, recipe in budgets.items()}
    return next((b for b, values in settings.items() if values == _settings(run.recipe)), "other")


def _settings(recipe: Recipe) -> dict[str, Any]:
    described = {"budgets", "choices", "cut", "published", "seed"}
    return recipe.model_dump(mode="json", exclude=described)


def _read(path: Path) -> _Run:
    """A file of results, with the recipe inside it or beside it in a run folder."""
    what = "the result of a run (it needs a name and metrics)"
    result = read_object(path, {"name", "metrics"}, what, "run its recipe again")
    beside = path.with_name("recipe.yaml")
    if "recipe" in result:
        return _Run(result, check_recipe(result["recipe"], str(path)))
    if path.name == "result.json" and beside.is_file():
        return _Run(
            result, check_recipe(parse_yaml(beside.read_text(encoding="utf-8")), str(beside))
        )
    return _Run(result)
