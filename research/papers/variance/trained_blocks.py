"""Blocks of pages that show studies of trained variance networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from leanbayes.errors import choose
from leanbayes.lab.files import read_object
from research.papers.variance import pictures, tables
from research.papers.variance.kl_over_alpha import draw_kls
from research.papers.variance.published import TABLE_1, TABLE_2, TABLE_3
from research.publishing.cells import Cell, averaged, differences
from research.publishing.paper_blocks import OwnBlocks, Picture

FOLDER = "after"
"""Where studies are, in the folder of results."""


_WITHOUT_ERRORS = ("alphas",)
_KEYS = {"name", "noise", "images", "accuracy", "elbo", "histogram", "seed"}


def read_trained(path: Path) -> tables.Study:
    """Read the study of a trained network."""
    what = "what python -m research papers variance writes"
    return read_object(path, _KEYS, what, "study its run again")


def after_blocks(results: Path) -> OwnBlocks:
    """Return what makes blocks of studies, each ``NAME, NAME, …`` or ``all`` of a printed table.

    Captions of pictures come after ``|``. A claim names a number of a study by ``after/NAME
    COLUMN``; see :func:`research.papers.variance.tables.numbers`. It names one of a training whose
    phases were recorded by ``phases/NAME COLUMN``: ``mean.most`` or ``mean.last`` for the accuracy
    of the means, ``zero_mean.last`` and so on, and ``dense1.log_alpha`` for the last log α.
    """
    of = _Studies(results)
    listed: dict[str, tuple[Callable[[tables.Studies], str], Mapping[str, Any]]] = {
        "variance-table-1": (tables.table_1, TABLE_1),
        "variance-table-2": (tables.table_2, TABLE_2),
        "variance-table-3": (tables.table_3, TABLE_3),
        "batch-statistics": (tables.batch_statistics, {}),
        "alphas": (tables.alphas, {}),
        "controls": (tables.controls, {}),
        "pruned": (tables.pruned, {}),
        "antithetic": (tables.antithetic, {}),
    }

    def table(kind: str) -> Callable[[str], str]:
        make, names = listed[kind]

        def made(argument: str) -> str:
            studies = of.named(argument, names)
            note = "" if kind in _WITHOUT_ERRORS else tables.errors_of(studies)
            return "\n\n".join(filter(None, (make(studies), note)))

        return made

    return OwnBlocks(
        tables={
            **{kind: table(kind) for kind in listed},
            "levels": lambda name: tables.levels(of.whole(name, "densities")),
        },
        pictures={
            "histogram": of.histogram,
            "pruning": of.pruning,
            "densities": of.densities,
            "phases": of.phases,
            "kl-over-alpha": draw_kls,
        },
        cells={FOLDER: of.cell, "phases": of.phase_cell},
        studies=dict.fromkeys(listed, "variance"),
    )


class _Studies:
    """The studies in a folder of results, by name of the recipe."""

    def __init__(self, results: Path) -> None:
        self.results = results

    def named(self, argument: str, every: Mapping[str, Any]) -> tables.Studies:
        """Return ``NAME, NAME, …``; for ``all``, those of a printed table."""
        names = every if argument == "all" and every else argument.split(", ")
        return {name: self._study(name) for name in names}

    def _study(self, name: str) -> tables.Study | None:
        """Return the study of the first seed, with those of the others; ``None`` without any."""
        files = (self.results / FOLDER).glob(f"{name}-seed*.json")
        studies = sorted(map(read_trained, files), key=lambda study: -study["seed"])
        return {**studies[0], "others": studies[1:]} if studies else None

    def _studied(self, name: str) -> tables.Study:
        study = self._study(name)
        if study is None:
            raise FileNotFoundError(f"{self.results / FOLDER} has no study of {name}")
        return study

    def whole(self, name: str, part: str) -> tables.Study:
        """Return a study that has a part; where several seeds have it, that of the first."""
        study = self._studied(name)
        if not study.get(part):
            raise ValueError(f"the study of {name} has no {part}: no layer has standard deviations")
        return study

    def cell(self, name: str, column: str) -> Cell:
        """Return a number that a sentence names."""
        return choose("number", column, tables.numbers(self._studied(name)))

    def phase_cell(self, name: str, column: str) -> Cell:
        """Return the most or the last of an accuracy, or the last log α of a layer, over seeds."""
        by_seed = [_of_phases(history) for history in self._histories(name)]
        return averaged([choose("number", column, known) for known in by_seed])

    def histogram(self, argument: str) -> Iterator[Picture]:
        """``NAME | caption``: accuracies of single draws, and of all averaged."""
        name, _, caption = argument.partition(" | ")
        study = self.whole(name, "histogram")
        yield Picture(f"histogram-{name}", caption, pictures.draw_histogram(study))

    def pruning(self, argument: str) -> Iterator[Picture]:
        """``NAME, … | caption``: accuracies of pruned layers."""
        names, _, caption = argument.partition(" | ")
        studies = [self.whole(name, "pruning") for name in names.split(", ")]
        titles = differences([study["recipe"] for study in studies])
        file = f"pruning-{names.replace(', ', '-')}"
        png = pictures.draw_pruning(dict(zip(titles, studies, strict=True)))
        yield Picture(file, caption, png)

    def densities(self, argument: str) -> Iterator[Picture]:
        """``NAME | caption``: outputs of single neurons by class."""
        name, _, caption = argument.partition(" | ")
        study = self.whole(name, "densities")
        yield Picture(f"densities-{name}", caption, pictures.draw_densities(study))

    def phases(self, argument: str) -> Iterator[Picture]:
        """``NAME, … | caption``: four accuracies and log α over epochs, a picture a run."""
        names, _, caption = argument.partition(" | ")
        for name in names.split(", "):
            history = self._histories(name)[0]
            png = pictures.draw_phases(history)
            yield Picture(f"phases-{name}", f"{caption} {name}." if "," in names else caption, png)

    def _histories(self, name: str) -> list[Mapping[str, list[float | None]]]:
        """Return the curves of every seed."""
        files = sorted(self.results.glob(f"{name}-seed*.json"), reverse=True)
        if not files:
            raise FileNotFoundError(
                f"{self.results} has no run of {name}; run and archive it first"
            )
        again = "an archived run", "archive it again"
        histories = [read_object(file, {"history"}, *again)["history"] for file in files]
        for file, history in zip(files, histories, strict=True):
            if "accuracy/mean" not in history:
                raise ValueError(
                    f"{file} has no column accuracy/mean; train its recipe with the accuracies of "
                    "every epoch recorded, and archive it again"
                )
        return histories


def _of_phases(history: Mapping[str, list[float | None]]) -> dict[str, float]:
    known: dict[str, float] = {}
    for key, values in history.items():
        numbers = [value for value in values if value is not None]
        if key.startswith("accuracy/") and numbers:
            kind = key.removeprefix("accuracy/")
            known |= {f"{kind}.most": max(numbers), f"{kind}.last": numbers[-1]}
        elif key.startswith("log_alpha/") and numbers:
            known[f"{key.rpartition('.')[2]}.log_alpha"] = numbers[-1]
    return known
