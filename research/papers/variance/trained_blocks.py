"""Blocks of pages that show studies of trained variance networks."""

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
_KEYS = {"name", "noise", "images", "accuracy", "elbo", "histogram", "seed"}
_TABLES: Mapping[str, tuple[Callable[[tables.Studies], str], Mapping[str, Any]]] = {
    "variance-table-1": (tables.table_1, TABLE_1),
    "variance-table-2": (tables.table_2, TABLE_2),
    "variance-table-3": (tables.table_3, TABLE_3),
    "batch-statistics": (tables.batch_statistics, {}),
    "alphas": (tables.alphas, {}),
    "controls": (tables.controls, {}),
    "pruned": (tables.pruned, {}),
    "antithetic": (tables.antithetic, {}),
}
"""How a table is made, and what ``all`` stands for."""
_WITHOUT_ERRORS = ("alphas",)


def read_trained(path: Path) -> tables.Study:
    """Read the study of a trained network."""
    what = "what python -m research papers variance writes"
    return read_object(path, _KEYS, what, "study its run again")


def after_blocks(results: Path) -> OwnBlocks:
    """Return what makes blocks of studies, each ``NAME, NAME, …`` or ``all`` of a printed table.

    A claim names a number of a study by ``after/NAME COLUMN``; see
    :func:`research.papers.variance.tables.numbers`. It names one of a training whose phases were
    recorded by ``phases/NAME COLUMN``: ``mean.most`` or ``mean.last`` for the accuracy of the
    means, ``zero_mean.last`` and so on, and ``dense1.log_alpha`` for the last log α.
    """
    of = _Studies(results)
    return OwnBlocks(
        tables={kind: lambda argument, kind=kind: of.table(kind, argument) for kind in _TABLES},  # type: ignore[misc]
        pictures={
            "histogram": of.histogram,
            "pruning": of.pruning,
            "densities": of.densities,
            "phases": of.phases,
            "kl-over-alpha": lambda _: [Picture("kl-over-alpha", draw_kls())],
        },
        cells={FOLDER: of.cell, "phases": of.phase_cell},
        studies=dict.fromkeys(_TABLES, "variance"),
    )


class _Studies:
    """The studies in a folder of results, by name of the recipe."""

    def __init__(self, results: Path) -> None:
        self.results = results

    def table(self, kind: str, argument: str) -> str:
        make, every = _TABLES[kind]
        names = every if argument == "all" and every else argument.split(", ")
        studies = {name: self._study(name) for name in names}
        note = "" if kind in _WITHOUT_ERRORS else tables.errors_of(studies)
        return "\n\n".join(filter(None, (make(studies), note)))

    def _study(self, name: str) -> tables.Study | None:
        """Return the study of the first seed, with those of the others; ``None`` without any."""
        files = (self.results / FOLDER).glob(f"{name}-seed*.json")
        studies = sorted(map(read_trained, files), key=lambda study: -study["seed"])
        return {**studies[0], "others": studies[1:]} if studies else None

    def _with(self, name: str, part: str = "accuracy") -> tables.Study:
        """Return a study that has a part; where several seeds have it, that of the first."""
        study = self._study(name)
        if study is None:
            raise FileNotFoundError(f"{self.results / FOLDER} has no study of {name}")
        if not study.get(part):
            raise ValueError(f"the study of {name} has no {part}: no layer has standard deviations")
        return study

    def cell(self, name: str, column: str) -> Cell:
        return choose("number", column, tables.numbers(self._with(name)))

    def phase_cell(self, name: str, column: str) -> Cell:
        """Return the most or the last of an accuracy, or the last log α of a layer, over seeds."""
        by_seed = [_of_phases(history) for history in self._histories(name)]
        return averaged([choose("number", column, known) for known in by_seed])

    def histogram(self, name: str) -> Iterator[Picture]:
        """Accuracies of single draws, and of all averaged."""
        yield Picture(f"histogram-{name}", pictures.draw_histogram(self._with(name, "histogram")))

    def pruning(self, names: str) -> Iterator[Picture]:
        """``NAME, …``: accuracies of pruned layers."""
        studies = [self._with(name, "pruning") for name in names.split(", ")]
        titles = differences([study["recipe"] for study in studies])
        png = pictures.draw_pruning(dict(zip(titles, studies, strict=True)))
        yield Picture(f"pruning-{names.replace(', ', '-')}", png)

    def densities(self, name: str) -> Iterator[Picture]:
        """Outputs of single neurons by class."""
        yield Picture(f"densities-{name}", pictures.draw_densities(self._with(name, "densities")))

    def phases(self, names: str) -> Iterator[Picture]:
        """``NAME, …``: four accuracies and log α over epochs, a picture a run."""
        for name in names.split(", "):
            png = pictures.draw_phases(self._histories(name)[0])
            yield Picture(f"phases-{name}", png, f" {name}." if "," in names else "")

    def _histories(self, name: str) -> list[Mapping[str, list[float | None]]]:
        """Return the curves of every seed."""
        files = sorted(self.results.glob(f"{name}-seed*.json"), reverse=True)
        if not files:
            raise FileNotFoundError(
                f"{self.results} has no run of {name}; run and archive it first"
            )
        again = "an archived run", "archive it again"
        return [read_object(file, {"history"}, *again)["history"] for file in files]


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
