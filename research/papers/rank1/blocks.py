"""Blocks of pages that show rank-one factors and their rivals."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from leanbayes.errors import choose
from leanbayes.lab import plots
from leanbayes.lab.files import read_object
from research.papers.rank1 import tables
from research.papers.rank1.induced import tails
from research.papers.rank1.published import TABLES, printed
from research.papers.rank1.seed_means import SEVERITIES, Found, read_runs
from research.papers.rank1.trials import trials_table
from research.publishing.cells import Cell
from research.publishing.paper_blocks import OwnBlocks, Picture, where_run
from research.publishing.tables import markdown_table

FORMULAS = ("factors", "weights", "indices j, k", "one curvature")

_OF_RUNS: Mapping[str, Callable[[tables.Runs], str]] = {
    "rank1-table": tables.main_table,
    "rank1-ablation": tables.ablation_table,
    "rank1-medians": tables.medians_table,
    "rank1-samples": tables.samples_table,
}


def rank1_blocks(results: Path) -> OwnBlocks:
    """Return what makes blocks of studies, each of ``NAME = what to call it, …``.

    ``rank1-printed`` is of ``CIFAR-10``, ``CIFAR-100`` or ``ImageNet``, ``rank1-severities`` of
    ``COLUMN of NAME = …``, ``induced-priors`` of a scale. Rows that were not run say so, and
    pictures leave them out. A claim names a number by ``rank1/NAME COLUMN``; see
    :meth:`.seed_means.Found.cell`. What the paper prints is ``printed-rank1/NAME COLUMN``, and
    ``theorem/layer 1 weights`` is a formula of theorem 1.
    """

    def found(name: str) -> Found:
        return Found(name, read_runs(results, name))

    def named(argument: str) -> dict[str, Found | None]:
        """Return ``NAME = what to call it, …``."""
        pairs = (entry.partition(" = ") for entry in argument.split(", "))
        if_run = where_run(found, None)
        return {title or name: if_run(name) for name, _, title in pairs}

    study = partial(_study, results / "studies")

    def theorem() -> Mapping[str, Any]:
        return study("theorem", "theorem")["parts"]

    def costs(argument: str) -> str:
        measured = where_run(study, None)("costs", "rank1-costs", "costs")
        return tables.cost_table(named(argument), measured)

    return OwnBlocks(
        tables={
            **{
                kind: lambda argument, make=make: make(named(argument))  # type: ignore[misc]
                for kind, make in _OF_RUNS.items()
            },
            "rank1-costs": costs,
            "rank1-printed": lambda name: tables.printed_table(choose("table", name, TABLES)),
            "rank1-trials": lambda _: trials_table(study("trials", "rank1-trials", "trials")),
            "theorem": lambda _: _theorem_table(theorem()),
        },
        pictures={
            "rank1-severities": lambda argument: _severities(argument, named),
            "theorem-curves": lambda layer: [_theorem_curves(theorem(), layer)],
            "induced-priors": _induced,
        },
        cells={
            "rank1": lambda name, column: found(name).cell(column),
            "printed-rank1": lambda name, column: Cell(
                published=choose("number", column, printed(name))
            ),
            "theorem": lambda layer, formula: Cell(
                choose("formula", formula, choose("layer", layer, theorem())["per_variance"])
            ),
        },
        studies=dict.fromkeys(_OF_RUNS, "rank1"),
    )


def _study(folder: Path, name: str, command: str, key: str = "parts") -> Mapping[str, Any]:
    again = f"run python -m research papers {command}"
    return read_object(folder / f"{name}.json", {key}, f"a file of {name}", again)


def _theorem_table(parts: Mapping[str, Any]) -> str:
    """Second-order changes of every layer, by four formulas, for noise of variance one."""
    lines = (
        [layer, *(f"{part['per_variance'][name]:.4f}".replace("-", "−") for name in FORMULAS)]
        for layer, part in parts.items()
    )
    return markdown_table(["disturbed", *FORMULAS], lines)


def _theorem_curves(parts: Mapping[str, Any], layer: str) -> Picture:
    """Return how far the mean moves with the scale of the noise."""
    part = choose("layer", layer, parts)
    scales = part["scales"]
    lines = {
        f"{name}, second order": [part["per_variance"][name] * s**2 for s in scales]
        for name in ("factors", "indices j, k", "one curvature")
    }
    lines |= {f"{kind}, drawn": part[kind]["mean"] for kind in ("signs", "normal weights")}
    png = plots.curves(scales, lines, "change of the mean output", xlabel="scale of the noise")
    return Picture(f"theorem-{layer.replace(' ', '-')}", png)


def _severities(
    argument: str, named: Callable[[str], Mapping[str, Found | None]]
) -> Iterator[Picture]:
    """``COLUMN of NAME = …, …``: a number over the five severities."""
    column, _, names = argument.partition(" of ")
    lines = {
        title: [_value(runs, f"severity.{s}.{column}") for s in SEVERITIES]
        for title, runs in named(names).items()
        if runs is not None and f"severity.1.{column}" in runs.columns
    }
    if lines:
        png = plots.curves([1, 2, 3, 4, 5], lines, tables.SHOWN[column], xlabel="severity")
        yield Picture(f"severities-{column}", png)


def _induced(scale: str) -> Iterator[Picture]:
    """Tails of weights under several kinds of factors."""
    thresholds = [0.25 * i for i in range(33)]
    shares = tails(thresholds, scale=float(scale))
    lines = {name: [share or math.nan for share in line] for name, line in shares.items()}
    label, xlabel = "share of weights beyond", "standard deviations of the normal"
    yield Picture("induced-priors", plots.curves(thresholds, lines, label, xlabel=xlabel, log=True))


def _value(runs: Found, column: str) -> float:
    value = runs.cell(column).ours
    return math.nan if value is None else value
