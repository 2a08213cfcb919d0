"""What stands in the blocks of a paper's pages: tables and pictures made from files of results."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from leanbayes.analysis.spectrum import Spectrum
from leanbayes.errors import choose
from leanbayes.lab import plots
from leanbayes.lab.files import read_object
from research.publishing.cells import (
    Cell,
    Row,
    differences,
    errors_note,
    experiments,
    mean_of,
    merge_seeds,
    rows_table,
    seeds_of,
)
from research.publishing.filled_claims import NotMeasuredError, filled
from research.publishing.pages import Makers
from research.publishing.paper import Claim, Paper
from research.publishing.paper_blocks import NOT_RUN, Picture, where_run
from research.publishing.plots import spectra_of
from research.publishing.results import read_compressed, table, truncations
from research.publishing.run_commands import ArchivedRuns
from research.publishing.tables import markdown_table
from research.publishing.verdicts import Verdict, judged, network_of, terms_of

Draw = Callable[[str], Iterable[Picture]]
_RATIOS = {
    "pooled": "E[g²]/Var[g] pooled",
    "median": "median",
    "gradient": "mean",
    "square": "mean of E[g²]/Var[g²]",
}


class Blocks:
    """The results of a paper, as blocks of its pages.

    Args:
        paper: whose recipes and published rows.
        results: archived runs, with what ``papers compress`` wrote in ``post_training/``; the
            paper's own by default.

    Attributes:
        pictures: PNG files by name, as blocks that show them are made.
    """

    def __init__(self, paper: Paper, results: Path | None = None) -> None:
        self.paper = paper
        self.results = results or paper.results
        self.own = [make(self.results) for make in paper.blocks]
        self.pictures: dict[str, bytes] = {}

    def makers(self, page: Path) -> Makers:
        """Return what makes every kind of block of a page; captions and more come after ``|``."""
        beside = os.path.relpath(self.paper.folder, page.parent)

        def drawn(draw: Draw, *left_out: type[Exception]) -> Callable[[str], str]:
            def made(argument: str) -> str:
                what, _, caption = argument.rpartition(" | ")
                with suppress(*left_out):
                    shown = (self._shown(beside, picture, caption) for picture in draw(what))
                    return "\n\n".join(shown)
                return ""

            return made

        of_all = {
            "claims": self.claims,
            "table": self._with_commands(self.table, self._names_of_experiment),
            "rows": self._with_commands(self.rows, _names),
            "post-training": self._with_commands(self.post_training, _names, "compress"),
            "probes": self._with_commands(self.probes, _names),
            "says": lambda sentence: filled(sentence, self.cell),
            "spectra": drawn(self.spectra),
            "heat-maps": drawn(self.heat_maps),
            "curves": drawn(self.curves),
        }
        for own in self.own:
            tables = {kind: where_run(make, NOT_RUN) for kind, make in own.tables.items()}
            of_all |= tables
            of_all |= {
                kind: self._with_commands(tables[kind], _names, study)
                for kind, study in own.studies.items()
            }
            of_all |= {k: drawn(draw, FileNotFoundError) for k, draw in own.pictures.items()}
        return of_all

    def _with_commands(
        self, make: Callable[[str], str], names: Callable[[str], list[str]], study: str = ""
    ) -> Callable[[str], str]:
        """Return a table with the commands of its rows."""

        def made(argument: str) -> str:
            table = make(argument)
            commands = self._archived.commands(names(argument), study)
            return "\n\n".join(filter(None, (table, commands)))

        return made

    def _names_of_experiment(self, experiment: str) -> list[str]:
        return [row.name for row in experiments(self.trained)[experiment]]

    @cached_property
    def _archived(self) -> ArchivedRuns:
        return ArchivedRuns(self.results, self.paper.recipes)

    def _shown(self, beside: str, picture: Picture, caption: str) -> str:
        file, caption = f"{picture.name}.png", caption + picture.more
        self.pictures[file] = picture.png
        return f"![{caption}]({Path(beside, file).as_posix()})\n\n*{caption}*"

    @cached_property
    def trained(self) -> list[Row]:
        """The rows of all recipes, merged over seeds."""
        return merge_seeds(table(self.paper, [self.results]))

    def cell(self, term: str) -> Cell:
        """Return the cell that a sentence names.

        It is ``RECIPE METRIC``, ``RECIPE/ROW METRIC`` of a row after training, ``RECIPE/spectra
        LAYER.scale`` (or ``LAYER.mean``) of what the first singular value explains,
        ``step/METHOD SET-UP`` of what ``results/bench`` has of a step, or what a study of
        the paper has.
        """
        where, _, column = term.rpartition(" ")
        name, _, part = where.partition("/")
        for own in self.own:
            if name in own.cells:
                return where_run(own.cells[name], Cell())(part, column)
        if name == "step":
            return self._step(part, column)
        if part == "spectra":
            layer, _, kind = column.rpartition(".")
            shares = choose("layer", layer, self._compressed(name)["spectra"])
            return Cell(shares[kind][0], seeds=1)
        rows = {row.title: row for row in self._truncations(name)} if part else {}
        row = choose("row", part, rows) if part else self._row(name)
        if not row.seeds and column not in row.cells:
            return Cell()
        cell = choose("metric", column, row.cells)
        return replace(cell, seeds=len(row.seeds)) if row.seeds else cell

    def claims(self, _: str) -> str:
        """Return what the paper says, whether it holds, what came out, and where to look."""
        lines = (
            [self.says(claim), str(self.verdict(claim)), self.came(claim), claim.where]
            for claim in self.paper.claims
        )
        header = ["what the paper says", "verdict", "result", "where to look"]
        return markdown_table(header, lines)

    def says(self, claim: Claim) -> str:
        """Return what the paper says, with its numbers."""
        return filled(claim.says, self.cell)

    def verdict(self, claim: Claim) -> Verdict:
        """Return whether it holds."""
        return judged(claim.conditions, self.cell)

    def budget(self, claim: Claim) -> str:
        """Epochs of the runs behind a claim, of those that their recipes have as published."""
        names = dict.fromkeys(network_of(term) for term in terms_of(claim.conditions))
        epochs = dict.fromkeys(filter(None, map(self._archived.epochs, names)))
        unit = "epoch" if list(epochs) == ["1"] else "epochs"
        return f"{', '.join(epochs)} {unit}" if epochs else "–"

    def came(self, claim: Claim) -> str:
        """Return what came out, as far as it was run."""
        try:
            return filled(claim.came, self.cell)
        except NotMeasuredError:
            return NOT_RUN

    def table(self, experiment: str) -> str:
        """Return the rows of an experiment."""
        return _rows_table(choose("experiment", experiment, experiments(self.trained)))

    def rows(self, names: str) -> str:
        """``RECIPE, RECIPE, …``: a row of each, of the published settings if they were run."""
        return _rows_table([self._row(name) for name in names.split(", ")])

    def post_training(self, argument: str) -> str:
        """``RECIPE | METRIC, …``: a trained mean field, its truncations and its tied versions."""
        name, _, also = argument.partition(" | ")
        return _rows_table(self._truncations(name, also.split(", ") if also else ()))

    def probes(self, names: str) -> str:
        """``RECIPE, …``: −ELBO and ratios of the probed layer at every step: means over seeds.

        Printed numbers are in brackets; their ratio is beside the pooled one.
        """
        runs = {name: self._runs(name) for name in names.split(", ")}
        if not any(runs.values()):
            return NOT_RUN
        lines = (line for name, known in runs.items() for line in _probed(name, known))
        return markdown_table(["run", "step", "−ELBO", *_RATIOS.values()], lines)

    def spectra(self, name: str) -> Iterator[Picture]:
        """Of a recipe: what singular values explain of standard deviations and means."""
        layers = {
            layer: Spectrum(torch.tensor(shares["scale"]), torch.tensor(shares["mean"]))
            for layer, shares in self._compressed(name)["spectra"].items()
        }
        yield Picture(f"spectra-{name}", spectra_of(layers))

    def heat_maps(self, name: str) -> Iterator[Picture]:
        """``RECIPE/LAYER``: the kept part of a matrix, and of it rank 1 and rank 2."""
        run, _, layer = name.partition("/")
        scale = torch.tensor(choose("layer", layer, self._compressed(run)["maps"]))
        u, s, v = torch.linalg.svd(scale, full_matrices=False)
        shown = {"mean field": scale}
        shown.update({f"rank {k}": (u[:, :k] * s[:k]) @ v[:k] for k in (1, 2)})
        for title, matrix in shown.items():
            png = plots.heat_map(matrix, f"σ, {title}", (0.0, float(scale.max())))
            yield Picture(f"{run}-{layer}-{title.replace(' ', '-')}", png, f": {title}")

    def curves(self, what: str) -> Iterator[Picture]:
        """``COLUMN of RECIPE, RECIPE, …``: a column of the metrics over epochs.

        Where there are several seeds, the line is their mean inside their range.
        """
        column, _, names = what.partition(" of ")
        epochs: list[float] = []
        lines, bands = {}, {}
        runs = {name: self._runs(name) for name in names.split(", ")}
        if missing := [name for name, found in runs.items() if not found]:
            raise FileNotFoundError(
                f"{self.results} has no run of {missing[0]}; run and archive it first"
            )
        titles = differences([found[0]["recipe"] for found in runs.values()])
        for title, (name, found) in zip(titles, runs.items(), strict=True):
            histories = [run["history"] for run in found]
            if any(history["epoch"] != (epochs or history["epoch"]) for history in histories):
                raise ValueError(f"{name} has other epochs than the other runs of this picture")
            epochs = histories[0]["epoch"]
            seeds = [_numbers(choose("column", column, history)) for history in histories]
            at_once = list(zip(*seeds, strict=True))
            title = "mean field" if title == "full" else title
            lines[title] = [fmean(values) for values in at_once]
            bands[title] = (list(map(min, at_once)), list(map(max, at_once)))
        png = plots.curves(epochs, lines, _ylabel(column), log=True, bands=bands)
        file = f"{column}-{names}".replace("/", "-").replace(", ", "-")
        yield Picture(file, png)

    def _row(self, name: str) -> Row:
        """Return the row of a recipe, of the published settings if they were run."""
        last = sorted(self.trained, key=lambda row: row.budget == "paper")
        return choose("recipe", name, {row.name: row for row in last})

    def _truncations(self, name: str, also: Sequence[str] = ()) -> list[Row]:
        file = self._compressed_file(name)
        if not file.is_file():
            choose("truncated run", name, self.paper.truncated)
        compressed = read_compressed(file) if file.is_file() else None
        return truncations(self.paper, name, compressed, also)

    def _step(self, method: str, setup: str) -> Cell:
        """Return a step relative to the plain network's, with what the paper prints of it."""
        path = self.results.parent / "bench" / "step.json"
        benchmark = read_object(
            path, {"branches"}, "a benchmark", "run python -m research bench run"
        )
        setups = benchmark["branches"]["native"]["setups"]
        cost = choose("method", method, choose("set-up", setup, setups))
        return Cell(cost["median"], published=self.paper.step_cost.get(method))

    def _runs(self, name: str) -> list[dict[str, Any]]:
        files = sorted(self.results.glob(f"{name}-seed*.json"))
        keys = {"seed", "metrics"}
        return [read_object(file, keys, "an archived run", "archive it again") for file in files]

    def _compressed_file(self, name: str) -> Path:
        return self.results / "post_training" / f"{name}.json"

    def _compressed(self, name: str) -> Mapping[str, Any]:
        return read_compressed(self._compressed_file(name))


def _names(argument: str) -> list[str]:
    """Return the recipes of ``RECIPE, RECIPE = what to call it, … | more``."""
    return [entry.partition(" = ")[0] for entry in argument.partition(" | ")[0].split(", ")]


def _probed(name: str, runs: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """A line for every step: run, step, −ELBO, and the ratios of the layer that was probed."""
    probes = [run.get("probe", {}) for run in runs]
    if not any(probes):
        yield [name, *["not run"] * (2 + len(_RATIOS))]
        return
    if any(probe.keys() != probes[0].keys() for probe in probes):
        raise ValueError(f"seeds of {name} were probed at several steps; run them again")
    recipe = runs[0]["recipe"]
    layer, printed = _probed_layer(recipe), (recipe.get("published") or {}).get("values", {})
    title = f"{name}, {seeds_of([run['seed'] for run in runs])}"
    for step in probes[0]:
        seeds = [probe[step] for probe in probes]
        elbo = mean_of([seed["negative_elbo"] for seed in seeds])
        pooled, *others = (
            mean_of([seed["snr"].get(kind, {}).get(layer) for seed in seeds]) for kind in _RATIOS
        )
        cells = [
            Cell(elbo, published=printed.get(f"negative_elbo_{step}")),
            Cell(pooled, published=printed.get(f"snr_{step}")),
            *map(Cell, others),
        ]
        yield [title, step, *map(str, cells)]


def _probed_layer(recipe: Mapping[str, Any]) -> str:
    """The layer of the measurement ``probe``, which was a key of its own in the first results."""
    listed = {each["kind"]: each for each in recipe.get("measurements", ())}
    return str((listed.get("probe") or recipe["probe"])["layer"])


def _rows_table(rows: Sequence[Row]) -> str:
    """Return the rows, and what their errors are over."""
    note = errors_note(len(row.seeds) for row in rows if row.seeds)
    return "\n\n".join(filter(None, (rows_table(rows), note)))


def _numbers(column: Iterable[float | None]) -> list[float]:
    """Return the values; what was not finite, and is not in the file, is not a number."""
    return [math.nan if value is None else value for value in column]


def _ylabel(column: str) -> str:
    """Return a column of the metrics in words."""
    kind, _, name = column.partition("/")
    if kind == "scale":
        return f"mean σ of {name.removeprefix('model.')}"
    return f"{kind} {name.replace('negative_elbo', '−ELBO')}"
