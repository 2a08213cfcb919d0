"""What a run folder holds, read so that a missing or damaged part costs only itself."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanbayes.lab.recipe import Recipe
from leanbayes.lab.recipe_files import read_recipe
from leanbayes.metrics import Score

__all__ = ["RunFolder", "read_run"]


@dataclass(frozen=True)
class RunFolder:
    """A run as its files tell it.

    Attributes:
        path: the folder.
        recipe: what was to be run.
        columns: ``metrics.csv``, by column; NaN where a cell is empty.
        result: ``result.json``; empty if the run has none that can be read.
        problems: one sentence for each file that is missing or damaged.
    """

    path: Path
    recipe: Recipe
    columns: Mapping[str, list[float]]
    result: Mapping[str, Any]
    problems: tuple[str, ...]

    @property
    def metrics(self) -> dict[str, Score]:
        """The test metrics of the result."""
        return _estimates(self.result.get("metrics", {}))

    @property
    def parameters(self) -> int | None:
        """How many numbers were trained."""
        counts = self.result.get("parameters")
        return sum(counts.values()) if counts else None


def _estimates(metrics: Mapping[str, Any]) -> dict[str, Score]:
    return {
        name: Score(float(given["value"]), float(given["error"])) for name, given in metrics.items()
    }


def read_run(path: str | Path) -> RunFolder:
    """Read a run folder; one without a recipe is no run, and raises."""
    path = Path(path)
    if not (path / "recipe.yaml").is_file():
        raise FileNotFoundError(
            f"{path} is no run folder: it has no recipe.yaml; give a folder that "
            "leanbayes train has written"
        )
    recipe = read_recipe(path / "recipe.yaml")
    problems: list[str] = []
    columns = _read_columns(path / "metrics.csv", problems)
    result = _read_result(path / "result.json", problems)
    return RunFolder(path, recipe, columns, result, tuple(problems))


def _read_columns(path: Path, problems: list[str]) -> dict[str, list[float]]:
    if not path.is_file() or not path.stat().st_size:
        problems.append("There is nothing in metrics.csv: no epoch has been finished.")
        return {}
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        names = list(rows[0]) if rows else []
        return {
            name: [float(row[name]) if row[name] else math.nan for row in rows] for name in names
        }
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        problems.append("The file metrics.csv is damaged, so there are no learning curves.")
        return {}


def _read_result(path: Path, problems: list[str]) -> dict[str, Any]:
    if not path.is_file():
        problems.append("There is no result.json: the run is not finished; resume it.")
        return {}
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        _estimates(result["metrics"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        problems.append(
            "The file result.json is truncated or damaged; delete it and resume the run to have "
            "it written again."
        )
        return {}
    return dict(result)
