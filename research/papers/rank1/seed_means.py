"""Numbers of studied runs, averaged over seeds, as cells of tables and sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from research.papers.rank1.published import printed
from research.publishing.cells import Cell, averaged
from research.publishing.paper import RECIPES
from research.publishing.results import recipes_by_budget
from research.publishing.sorted_slices import classes_seen
from research.publishing.study_file import read_study

FOLDER = "after"
"""Where studies of runs are, in the folder of results."""
SEVERITIES = ("1", "2", "3", "4", "5")
_COMMAND = "python -m research papers rank1"
_CORRUPTED = {"nll": "cnll", "accuracy": "ca", "ece": "cece"}

Numbers = Mapping[str, tuple[float, float]]
"""Values with their standard errors over images, 0 where there is none."""


def read_runs(results: Path, name: str) -> list[Mapping[str, Any]]:
    """Return the studies of a recipe's seeds; raises a sentence if there is none."""
    files = sorted((results / FOLDER).glob(f"{name}-seed*.json"))
    if not files:
        raise FileNotFoundError(
            f"{results / FOLDER} has no study of {name}; run {_COMMAND} on its runs"
        )
    return [read_study(file, "papers rank1") for file in files]


class Found:
    """What the runs of one recipe came to."""

    def __init__(self, name: str, studies: Sequence[Mapping[str, Any]]) -> None:
        self.name = name
        self.studies = studies
        self._by_seed = _comparable([_numbers(study) for study in studies])

    @property
    def seeds(self) -> list[int]:
        """Of the runs."""
        return [study["settings"]["seed"] for study in self.studies]

    @property
    def samples(self) -> int:
        """Of every member, in an average."""
        return int(self.studies[0]["parts"]["network"]["samples"])

    @property
    def samples_of_recipe(self) -> tuple[int, ...]:
        """The same as the recipe has it, under every budget; none without a recipe."""
        file = RECIPES / "rank1" / f"{self.name}.yaml"
        budgets = recipes_by_budget(file).values() if file.is_file() else ()
        return tuple(dict.fromkeys(recipe.evaluation.samples for recipe in budgets))

    @property
    def foreign_slice(self) -> tuple[int, int] | None:
        """Images of CIFAR-100 that were the foreign ones, and their classes: of the worst seed."""
        parts = [study["parts"] for study in self.studies]
        slices = [
            (images, classes_seen(images, part["foreign"].get("preprocessing")))
            for part in parts
            if part.get("foreign", {}).get("data") == "cifar100"
            for images in [part["clean"]["images"]]
        ]
        return min(slices, key=lambda found: found[1], default=None)

    @property
    def columns(self) -> list[str]:
        """The numbers that some seed has."""
        return list(dict.fromkeys(column for numbers in self._by_seed for column in numbers))

    def cell(self, column: str) -> Cell:
        """The mean over the seeds that have it, with its standard error over seeds or, of one seed,
        over images.

        ``nll``, ``accuracy``, ``ece``; ``cnll``, ``ca``, ``cece``; ``auroc``; ``parameters``,
        ``share`` (more than the plain network has); ``diversity``; ``samples.4.nll`` and
        ``few.4.cnll`` by the number of samples, of the seeds that have all of these numbers;
        ``gained.4.nll``, how much lower it is than by the fewest samples of the same network;
        ``severity.3.cnll``, the mean over corruptions, and ``median.3.cnll``.
        """
        found = [numbers[column] for numbers in self._by_seed if column in numbers]
        if not found:
            raise FileNotFoundError(
                f"no study of {self.name} has {column!r} yet; resume {_COMMAND}"
            )
        cell = averaged([value for value, _ in found], [error for _, error in found])
        return replace(cell, error=cell.error or None, published=printed(self.name).get(column))


def _comparable(by_seed: Sequence[Numbers]) -> list[Numbers]:
    """Without numbers of samples of seeds that lack some: all of them are of the same runs."""
    start = "samples."
    wanted = {column for numbers in by_seed for column in numbers if column.startswith(start)}
    return [
        numbers
        if wanted <= numbers.keys()
        else {column: value for column, value in numbers.items() if not column.startswith(start)}
        for numbers in by_seed
    ]


def _numbers(study: Mapping[str, Any]) -> Numbers:
    """Return every number of one run, by name; parts that are not finished are not there."""
    parts, kinds = study["parts"], study["settings"]["kinds"]
    found: dict[str, tuple[float, float]] = {}
    if "network" in parts:
        network = parts["network"]
        total, plain = network["parameters"], network["plain_parameters"]
        found |= {"parameters": (total, 0.0), "share": (total / plain - 1, 0.0)}
        found["passes"] = (network["members"] * network["samples"], 0.0)
    if "clean" in parts and "network" in parts:
        found |= _clean(parts["clean"], str(parts["network"]["samples"]))
    if "foreign" in parts:
        score = parts["foreign"]["auroc_entropy"]
        found["auroc"] = (score["value"], score["error"])
    absent = parts.get("network", {}).get("absent", ())
    wanted = [kind for kind in kinds if kind not in absent]
    for start, prefix in (("corrupted", ""), ("few", "few.")):
        damaged = [parts[f"{start} {kind}"] for kind in wanted if f"{start} {kind}" in parts]
        if damaged and len(damaged) == len(wanted):
            found |= _corrupted(damaged, prefix)
    return found


def _clean(part: Mapping[str, Any], own: str) -> Numbers:
    found = {}
    fewest = next(iter(part["scores"].values()))
    for count, scores in part["scores"].items():
        for metric, score in scores.items():
            found[f"samples.{count}.{metric}"] = (score["value"], score["error"])
            found[f"gained.{count}.{metric}"] = (fewest[metric]["value"] - score["value"], 0.0)
    chosen = part["scores"].get(own) or next(iter(part["scores"].values()))
    found |= {metric: (score["value"], score["error"]) for metric, score in chosen.items()}
    if part["diversity"]:
        for name in ("disagreement", "diversity"):
            score = part["diversity"][name]
            found[name] = (score["value"], score["error"])
    return found


def _corrupted(kinds: Sequence[Mapping[str, Any]], prefix: str) -> Numbers:
    """Return averages over corruptions and severities, and means and medians of each severity."""
    counts = list(kinds[0]["severities"]["1"])
    found = {}
    for metric, short in _CORRUPTED.items():
        for count in counts:
            by_severity = {
                severity: [part["severities"][severity][count][metric]["value"] for part in kinds]
                for severity in SEVERITIES
            }
            name = f"{prefix}{count}.{short}" if prefix else short
            found[name] = (fmean(map(fmean, by_severity.values())), 0.0)
            if not prefix:
                for severity, values in by_severity.items():
                    found[f"severity.{severity}.{short}"] = (fmean(values), 0.0)
                    found[f"median.{severity}.{short}"] = (median(values), 0.0)
    return found
