"""What stands in the blocks of a paper's page: tables and pictures made from files of results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from leanbayes.errors import choose
from leanbayes.lab import plots
from leanbayes.lab.files import read_object, write_bytes
from leanbayes.lab.papers import (
    Cell,
    experiments,
    markdown,
    mean_of,
    merge_seeds,
    seeds_of,
    table,
)
from leanbayes.lab.papers.k_tied import STEP_COST, post_training, read_compressed
from leanbayes.lab.papers.page import Blocks
from leanbayes.spectrum import Spectrum

__all__ = ["Results"]

_RATIOS = ("pooled", "median", "gradient", "square")


class Results:
    """The results of a paper, as blocks of its page.

    Args:
        paper: its name.
        folder: archived runs, with what ``leanbayes compress`` wrote in ``post_training/``.
        page: the page; its pictures lie in a folder of the same name.
    """

    def __init__(self, paper: str, folder: Path, page: Path) -> None:
        self.paper = paper
        self.folder = folder
        self.pictures = page.with_suffix("")

    def blocks(self) -> Blocks:
        """What makes every kind of block; a caption comes after ``|``."""
        return {
            "table": self.table,
            "seeds": self.seeds,
            "post-training": self.post_training,
            "probes": self.probes,
            "spectra": self.spectra,
            "heat-maps": self.heat_maps,
            "curves": self.curves,
            "costs": self.costs,
        }

    def table(self, experiment: str) -> str:
        """The rows of an experiment, merged over seeds."""
        found = experiments(merge_seeds(table(self.paper, [self.folder])))
        if experiment not in found:
            raise ValueError(
                f"no experiment is called {experiment!r}; there are {', '.join(found)}"
            )
        return markdown(found[experiment])

    def seeds(self, name: str) -> str:
        """Every seed of a recipe, by metric."""
        runs = self._runs(name)
        if not runs:
            return "Not run."
        lines = []
        for metric in ("accuracy", "nll", "negative_elbo"):
            values = ", ".join(f"{run['metrics'][metric]['value']:.4f}" for run in runs)
            lines.append(f"{metric.replace('_', ' ')}: {values}")
        return f"Seeds {', '.join(str(run['seed']) for run in runs)}: " + "; ".join(lines) + "."

    def post_training(self, name: str) -> str:
        """A trained mean field, its truncations and its tied versions."""
        path = self.folder / "post_training" / f"{name}.json"
        return markdown(post_training(name, read_compressed(path) if path.is_file() else None))

    def probes(self, names: str) -> str:
        """The −ELBO and the ratios of the probed layer at every step: means over the seeds.

        What the paper prints stands in brackets; its ratio stands by the pooled one.
        """
        ratios = ["E[g²]/Var[g] pooled", "median", "mean", "mean of E[g²]/Var[g²]"]
        header = ["run", "step", "−ELBO", *ratios]
        lines = [header, ["---"] * len(header)]
        for name in names.split(", "):
            runs = self._runs(name)
            if any(run.get("probe", {}).keys() != runs[0].get("probe", {}).keys() for run in runs):
                raise ValueError(f"seeds of {name} were probed at several steps; run them again")
            title = f"{name}, {seeds_of(len(runs), runs[0]['seed'])}" if runs else name
            lines += [[title, *cells] for cells in _probed(runs)] or [[name, *["not run"] * 6]]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def spectra(self, argument: str) -> str:
        """``RUN | caption``: what singular values explain of standard deviations and means."""
        name, caption = _split(argument)
        layers = {
            layer: Spectrum(torch.tensor(shares["scale"]), torch.tensor(shares["mean"]))
            for layer, shares in self._compressed(name)["spectra"].items()
        }
        return self._picture(f"spectra-{name}", plots.spectra_of(layers), caption)

    def heat_maps(self, argument: str) -> str:
        """``RUN/LAYER | caption``: the kept part of a matrix, and of it rank 1 and rank 2."""
        name, caption = _split(argument)
        run, _, layer = name.partition("/")
        scale = torch.tensor(choose("layer", layer, self._compressed(run)["maps"]))
        u, s, v = torch.linalg.svd(scale, full_matrices=False)
        shown = {"full": scale}
        shown.update({f"rank {k}": (u[:, :k] * s[:k]) @ v[:k] for k in (1, 2)})
        return "\n\n".join(
            self._picture(
                f"{run}-{layer}-{title.replace(' ', '-')}",
                plots.heat_map(matrix, f"σ, {title}"),
                f"{caption}: {title}",
            )
            for title, matrix in shown.items()
        )

    def curves(self, argument: str) -> str:
        """``COLUMN of RUN, RUN, … | caption``: a column of the metrics over epochs.

        Where there are several seeds, the line is their mean inside their range.
        """
        what, caption = _split(argument)
        column, _, names = what.partition(" of ")
        epochs: list[float] = []
        lines, bands = {}, {}
        for name in names.split(", "):
            histories = [run["history"] for run in self._some(name)]
            if any(history["epoch"] != (epochs or history["epoch"]) for history in histories):
                raise ValueError(f"{name} has other epochs than the other runs of this picture")
            epochs = histories[0]["epoch"]
            seeds = [_numbers(choose("column", column, history)) for history in histories]
            at_once = list(zip(*seeds, strict=True))
            lines[name] = [fmean(values) for values in at_once]
            bands[name] = ([min(values) for values in at_once], [max(values) for values in at_once])
        png = plots.curves(epochs, lines, _ylabel(column), log=True, bands=bands)
        return self._picture(f"{column}-{names}".replace("/", "-").replace(", ", "-"), png, caption)

    def costs(self, setup: str) -> str:
        """What a training step of a set-up of ``benchmarks/step_cost.py`` costs."""
        path = self.folder / "benchmarks" / "step_cost.json"
        found = read_object(path, {"setups"}, "a benchmark", "run benchmarks/step_cost.py")
        families = choose("set-up", setup, found["setups"])["families"]
        lines = [
            "| posterior | step, relative to the plain network | quartiles |",
            "| --- " * 3 + "|",
        ]
        for name, cost in families.items():
            step = cost["step"]
            cell = Cell(step["median"], published=STEP_COST.get(name))
            lines.append(f"| {name} | {cell} | {step['low']:.3g} – {step['high']:.3g} |")
        return "\n".join(lines)

    def _runs(self, name: str) -> list[dict[str, Any]]:
        files = sorted(self.folder.glob(f"{name}-seed*.json"))
        keys = {"seed", "metrics"}
        return [read_object(file, keys, "an archived run", "archive it again") for file in files]

    def _some(self, name: str) -> list[dict[str, Any]]:
        runs = self._runs(name)
        if not runs:
            raise FileNotFoundError(f"{self.folder} has no run of {name}; run and archive it first")
        return runs

    def _compressed(self, name: str) -> Mapping[str, Any]:
        return read_compressed(self.folder / "post_training" / f"{name}.json")

    def _picture(self, name: str, png: bytes, caption: str) -> str:
        write_bytes(self.pictures / f"{name}.png", png)
        return f"![{caption}]({self.pictures.name}/{name}.png)\n\n*{caption}*"


def _probed(runs: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """A line for every step: step, −ELBO, and the ratios of the layer that was probed."""
    if not runs or not runs[0].get("probe"):
        return
    recipe = runs[0]["recipe"]
    layer, printed = recipe["probe"]["layer"], (recipe.get("published") or {}).get("values", {})
    for step in runs[0]["probe"]:
        found = [run["probe"][step] for run in runs]
        elbo = mean_of([seed["negative_elbo"] for seed in found])
        ratios = [
            mean_of([seed["snr"].get(kind, {}).get(layer) for seed in found]) for kind in _RATIOS
        ]
        cells = [
            Cell(elbo, published=printed.get(f"negative_elbo_{step}")),
            Cell(ratios[0], published=printed.get(f"snr_{step}")),
            *map(Cell, ratios[1:]),
        ]
        yield [step, *map(str, cells)]


def _numbers(column: Iterable[float | None]) -> list[float]:
    """The values; what was not finite, and is not in the file, is not a number."""
    return [math.nan if value is None else value for value in column]


def _ylabel(column: str) -> str:
    """A column of the metrics in words."""
    kind, _, name = column.partition("/")
    if kind == "scale":
        return f"mean σ of {name.removeprefix('model.')}"
    return f"{kind} {name.replace('negative_elbo', '−ELBO')}"


def _split(argument: str) -> tuple[str, str]:
    what, _, caption = argument.partition(" | ")
    return what, caption
