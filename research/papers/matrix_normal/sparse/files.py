"""Studies of sparse runs and archived runs as files, some of which are not there yet."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leanbayes.lab.files import read_object
from leanbayes.lab.recipe import Published
from research.publishing.paper import RECIPES
from research.publishing.results import recipes_by_budget

Study = Mapping[str, Any]
SPARSITY, COMPACTION = "sparsity", "compaction"
"""Folders of studies, in the folder of results."""
_KEYS = {"name", "seed", "whole", "sweep"}


class Sparse:
    """The studies, archived runs and benchmarks of sparse networks."""

    def __init__(self, results: Path) -> None:
        self.results = results

    def studies(self, name: str, folder: str = SPARSITY) -> list[Study]:
        """Return the studies of a recipe, a seed each; none if it was not run."""
        what = f"what python -m research papers {folder} writes"
        return [
            read_object(file, _KEYS, what, "study its run again")
            for file in self._files(self.results / folder, name)
        ]

    def histories(self, name: str) -> list[Mapping[str, Sequence[float | None]]]:
        """Return curves over epochs of the archived runs of a recipe that recorded them."""
        runs = [
            read_object(file, {"history"}, "an archived run", "archive it again")
            for file in self._files(self.results, name)
        ]
        return [run["history"] for run in runs if "left/weights" in run["history"]]

    def benchmark(self, name: str) -> Study:
        """Return what a module of ``benchmarks`` measured; a missing file is an error."""
        again = f"run python -m research bench {name.replace('_', '-')}"
        file = self.results.parent / "bench" / f"{name}.json"
        return read_object(file, {"machine"}, "a benchmark", again)

    @staticmethod
    def _files(folder: Path, name: str) -> list[Path]:
        return sorted(folder.glob(f"{name}-seed*.json"))


def title(name: str) -> str:
    """Return the row of the paper that a recipe stands for.

    Example:
        >>> title("mnist-mlp-mn")
        'FC 300 on MNIST, MN'
    """
    published = _published(name)
    return name if published is None else published.row


def printed(name: str, metric: str) -> float | None:
    """Return what the paper prints of a recipe's row, if it does.

    Example:
        >>> printed("cifar10-vgg-x2-sparse-mn", "accuracy")
        0.871
    """
    published = _published(name)
    return None if published is None else published.values.get(metric)


def _published(name: str) -> Published | None:
    return recipes_by_budget(RECIPES / "matrix_normal" / f"{name}.yaml")["paper"].published


def family(name: str) -> str:
    """Return what stands last in the title: the posterior.

    Example:
        >>> family("cifar10-vgg-x1-sparse-mn")
        'MN'
    """
    return title(name).rpartition(", ")[2]
