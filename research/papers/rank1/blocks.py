"""Blocks of pages that show rank-one factors and their rivals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leanbayes.errors import choose
from leanbayes.lab import plots
from leanbayes.lab.files import read_object
from research.papers.rank1 import tables
from research.papers.rank1.induced import tails
from research.papers.rank1.published import CIFAR10, CIFAR100, IMAGENET, printed
from research.papers.rank1.seed_means import SEVERITIES, Found, read_runs
from research.papers.rank1.trials import trials_table
from research.publishing.cells import Cell
from research.publishing.paper_blocks import OwnBlocks, Picture
from research.publishing.tables import markdown_table

FORMULAS = ("factors", "weights", "indices j, k", "one curvature")
_PRINTED = {"CIFAR-10": CIFAR10, "CIFAR-100": CIFAR100, "ImageNet": IMAGENET}


def rank1_blocks(results: Path) -> OwnBlocks:
    """Return what makes blocks of studies, each of ``NAME = what to call it, …``.

    Tables are ``rank1-table``, ``rank1-ablation``, ``rank1-medians``, ``rank1-samples``,
    ``rank1-costs``, ``rank1-trials``, ``rank1-printed`` (of ``CIFAR-10``, ``CIFAR-100`` or
    ``ImageNet``) and ``theorem``; pictures are ``rank1-severities`` (``COLUMN of NAME = …``),
    ``rank1-sample-curves``, ``theorem-curves`` and ``induced-priors`` (of a scale), with captions
    after ``|``. Rows that were not run say so, and pictures leave them out. A claim names a number
    by ``rank1/NAME COLUMN``; see :meth:`.seed_means.Found.cell`. What the paper
    prints is ``printed-rank1/NAME COLUMN``, and ``theorem/layer 1 weights`` is a formula of
    theorem 1.
    """
    of = _Studies(results)
    of_runs: Mapping[str, Callable[[tables.Runs], str]] = {
        "rank1-table": tables.main_table,
        "rank1-ablation": tables.ablation_table,
        "rank1-medians": tables.medians_table,
        "rank1-samples": tables.samples_table,
        "rank1-costs": lambda runs: tables.cost_table(runs, of.costs()),
    }

    def table(make: Callable[[tables.Runs], str]) -> Callable[[str], str]:
        return lambda argument: make(of.named(argument))

    return OwnBlocks(
        tables={
            **{kind: table(make) for kind, make in of_runs.items()},
            "rank1-printed": lambda name: tables.printed_table(choose("table", name, _PRINTED)),
            "rank1-trials": lambda _: of.trials_table(),
            "theorem": lambda _: of.theorem_table(),
        },
        pictures={
            "rank1-severities": of.severities,
            "rank1-sample-curves": of.sample_curves,
            "theorem-curves": of.theorem_curves,
            "induced-priors": _induced,
        },
        cells={
            "rank1": of.cell,
            "printed-rank1": lambda name, column: Cell(
                published=choose("number", column, printed(name))
            ),
            "theorem": of.theorem_cell,
        },
        studies={kind: "rank1" for kind in of_runs if kind != "rank1-costs"},
    )


class _Studies:
    """The studies in a folder of results."""

    def __init__(self, results: Path) -> None:
        self.results = results

    def named(self, argument: str) -> dict[str, Found | None]:
        """Return ``NAME = what to call it, …``."""
        pairs = (entry.partition(" = ") for entry in argument.split(", "))
        return {title or name: self._found(name) for name, _, title in pairs}

    def _found(self, name: str) -> Found | None:
        try:
            return Found(name, read_runs(self.results, name))
        except FileNotFoundError:
            return None

    def cell(self, name: str, column: str) -> Cell:
        return Found(name, read_runs(self.results, name)).cell(column)

    def _file(self, name: str, command: str, key: str = "parts") -> Mapping[str, Any] | None:
        """Return a file of results; ``None`` if it is not there."""
        file = self.results / "studies" / f"{name}.json"
        if not file.is_file():
            return None
        return read_object(
            file, {key}, f"a file of {name}", f"run python -m research papers {command}"
        )

    def costs(self) -> Mapping[str, Any] | None:
        return self._file("costs", "rank1-costs", "costs")

    def trials_table(self) -> str:
        """Return what was tried on validation images before the table was trained."""
        found = self._file("trials", "rank1-trials", "trials")
        return tables.NOT_RUN if found is None else trials_table(found)

    def _theorem(self) -> Mapping[str, Any] | None:
        return self._file("theorem", "theorem")

    def theorem_cell(self, layer: str, formula: str) -> Cell:
        study = self._theorem()
        if study is None:
            raise FileNotFoundError("theorem 1 was not studied; run research papers theorem")
        by_formula = choose("layer", layer, study["parts"])["per_variance"]
        return Cell(choose("formula", formula, by_formula))

    def theorem_table(self) -> str:
        """Second-order changes of every layer, by four formulas, for noise of variance one."""
        study = self._theorem()
        if study is None:
            return tables.NOT_RUN
        lines = (
            [layer, *(f"{part['per_variance'][name]:.4f}".replace("-", "−") for name in FORMULAS)]
            for layer, part in study["parts"].items()
        )
        return markdown_table(["disturbed", *FORMULAS], lines)

    def theorem_curves(self, argument: str) -> Iterator[Picture]:
        """``LAYER | caption``: how far the mean moves with the scale of the noise."""
        layer, _, caption = argument.partition(" | ")
        study = self._theorem()
        if study is None:
            return
        part = choose("layer", layer, study["parts"])
        scales = part["scales"]
        lines = {
            f"{name}, second order": [part["per_variance"][name] * s**2 for s in scales]
            for name in ("factors", "indices j, k", "one curvature")
        }
        lines |= {f"{kind}, drawn": part[kind]["mean"] for kind in ("signs", "normal weights")}
        png = plots.curves(scales, lines, "change of the mean output", xlabel="scale of the noise")
        yield Picture(f"theorem-{layer.replace(' ', '-')}", caption, png)

    def severities(self, argument: str) -> Iterator[Picture]:
        """``COLUMN of NAME = …, … | caption``: a number over the five severities."""
        what, _, caption = argument.partition(" | ")
        column, _, names = what.partition(" of ")
        found = _there(self.named(names))
        lines = {
            title: [_value(runs, f"severity.{s}.{column}") for s in SEVERITIES]
            for title, runs in found.items()
            if f"severity.1.{column}" in runs.columns
        }
        if lines:
            png = plots.curves([1, 2, 3, 4, 5], lines, tables.SHOWN[column], xlabel="severity")
            yield Picture(f"severities-{column}", caption, png)

    def sample_curves(self, argument: str) -> Iterator[Picture]:
        """``COLUMN of NAME = …, … | caption``: a number over the number of samples."""
        what, _, caption = argument.partition(" | ")
        column, _, names = what.partition(" of ")
        prefix = "few" if column.startswith("c") else "samples"
        lines: dict[str, Sequence[float]] = {}
        counts: list[int] = []
        for title, runs in _there(self.named(names)).items():
            own = [int(c.split(".")[1]) for c in runs.columns if c.startswith(f"{prefix}.")]
            counts = sorted(set(own)) or counts
            if own:
                lines[title] = [_value(runs, f"{prefix}.{n}.{column}") for n in counts]
        if lines:
            label = tables.SHOWN[column]
            png = plots.curves(counts, lines, label, xlabel="samples of every member")
            yield Picture(f"samples-{column}", caption, png)


def _induced(argument: str) -> Iterator[Picture]:
    """``SCALE | caption``: tails of weights under several kinds of factors."""
    scale, _, caption = argument.partition(" | ")
    thresholds = [0.25 * i for i in range(33)]
    shares = tails(thresholds, scale=float(scale))
    lines = {name: [share or math.nan for share in line] for name, line in shares.items()}
    label = "share of weights beyond"
    png = plots.curves(
        thresholds, lines, label, xlabel="standard deviations of the normal", log=True
    )
    yield Picture("induced-priors", caption, png)


def _there(runs: Mapping[str, Found | None]) -> dict[str, Found]:
    return {title: found for title, found in runs.items() if found is not None}


def _value(runs: Found, column: str) -> float:
    value = runs.cell(column).ours
    return math.nan if value is None else value
