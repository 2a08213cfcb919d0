"""Rows of a paper, from its recipes and from files of results and never from memory.

A row is a recipe whose ``published`` names the paper; a run belongs to it by the recipe's name.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from leanbayes.errors import require
from leanbayes.lab.files import read_object
from leanbayes.lab.recipe import Budget, Recipe, check_recipe
from leanbayes.lab.recipe_files import apply_settings, read_recipe
from leanbayes.lab.result_files import read_result
from research.publishing.cells import ALWAYS_SHOWN, Cell, Row
from research.publishing.paper import Paper

_PROBED = ("snr_", "negative_elbo_")

Metrics = Mapping[str, Mapping[str, float]]


def find_results(paths: Iterable[str | Path]) -> list[Path]:
    """Files of results: ``result.json`` of run folders, however deep, or any file that is named.

    A folder without run folders gives all its ``*.json``.
    """
    files: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; give run folders or files of results")
        inside = [path] if path.is_file() else sorted(path.rglob("result.json"))
        files.update(dict.fromkeys(inside or sorted(path.glob("*.json"))))
    return list(files)


def table(paper: Paper, runs: Iterable[str | Path]) -> list[Row]:
    """Return the rows of a paper in the order of its recipes, each run or that there is none."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for path in find_results(runs):
        result = _read(path)
        by_name.setdefault(str(result["name"]), []).append(result)
    return list(_rows(paper.recipes, by_name))


def _read(path: Path) -> dict[str, Any]:
    """Return a file of results, with the recipe inside it or beside it in a run folder."""
    result = read_result(path, "run its recipe again")
    beside, values = path.with_name("recipe.yaml"), result.pop("recipe", None)
    recipe = None if values is None else check_recipe(values, str(path))
    if recipe is None and path.name == "result.json" and beside.is_file():
        recipe = read_recipe(beside)
    return {**result, "recipe": recipe}


def _rows(folder: Path, results: Mapping[str, list[dict[str, Any]]]) -> Iterator[Row]:
    files = sorted(folder.glob("*.yaml"), key=lambda file: file.stem)
    if not files:
        raise FileNotFoundError(f"{folder} holds no recipes; write one for each published row")
    for file in files:
        budgets = recipes_by_budget(file)
        yield from (_row(budgets, run) for run in results.get(budgets["paper"].name, [None]))


def recipes_by_budget(file: Path) -> Mapping[Budget, Recipe]:
    """Return a recipe under every budget; its YAML is parsed once, until the file changes."""
    return _recipes_by_budget(file, file.stat().st_mtime_ns)


@cache
def _recipes_by_budget(file: Path, _changed: int) -> Mapping[Budget, Recipe]:
    recipe = read_recipe(file)
    values = recipe.model_dump(mode="json")
    small = apply_settings(values, recipe.budgets.get("cpu", {}))
    return {"paper": recipe, "cpu": check_recipe(small, str(file))}


def _row(budgets: Mapping[Budget, Recipe], result: Mapping[str, Any] | None) -> Row:
    recipe = budgets["paper"]
    published = recipe.published
    printed = published.values if published else {}
    title = published.row if published else recipe.name
    if result is None:
        return Row(recipe.name, title, _cells({}, printed, ALWAYS_SHOWN))
    measured = dict(result["metrics"])
    if "parameters" in result:
        measured["parameters"] = {"value": sum(result["parameters"].values())}
    columns = (*ALWAYS_SHOWN, "kl", "parameters", *(m for m in measured if m.startswith(_PROBED)))
    return Row(
        recipe.name,
        title,
        _cells(measured, printed, columns),
        _budget_of(result["recipe"], budgets),
        (result.get("seed"),),
    )


def _cells(
    measured: Metrics, printed: Mapping[str, float], names: Iterable[str]
) -> dict[str, Cell]:
    """Return the cells of these metrics, and of all that is printed."""
    return {
        name: Cell(
            measured.get(name, {}).get("value"),
            measured.get(name, {}).get("error"),
            printed.get(name),
        )
        for name in dict.fromkeys((*names, *printed))
    }


def _budget_of(recipe: Recipe | None, budgets: Mapping[Budget, Recipe]) -> str:
    """Under which settings a run was made, whatever its seed."""
    if recipe is None:
        return ""
    given = _settings(recipe)
    return next((name for name, known in budgets.items() if _settings(known) == given), "other")


def _settings(recipe: Recipe) -> dict[str, Any]:
    described = {"budgets", "choices", "cut", "published", "seed"}
    return recipe.model_dump(mode="json", exclude=described)


def truncations(
    paper: Paper, name: str, compressed: Mapping[str, Any] | None, also: Sequence[str] = ()
) -> list[Row]:
    """Return the rows of a trained mean field, its truncations and its tied versions."""
    published = paper.truncated.get(name, {})
    if compressed is None:
        return [Row(name, title, _cells({}, row, ())) for title, row in published.items()]
    printed = (metric for row in published.values() for metric in row)
    shown = (*ALWAYS_SHOWN, "kl", *also, *printed, "parameters")
    rows = []
    for title, row in compressed["rows"].items():
        measured = {**row["metrics"], "parameters": {"value": row["parameters"]}}
        cells = _cells(measured, published.get(title, {}), shown)
        rows.append(Row(name, title, cells, seeds=(compressed["seed"],)))
    return rows


def compressed_runs(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return what ``research papers compress`` wrote below a folder, by recipe."""
    files = [*sorted(folder.rglob("compress.json")), *sorted(folder.glob("post_training/*.json"))]
    return {run["name"]: run for run in map(read_compressed, files)}


def read_compressed(file: Path) -> Mapping[str, Any]:
    """Return what ``research papers compress`` wrote to this file."""
    keys, what = (
        {"name", "rows", "seed", "spectra", "maps"},
        "what python -m research papers compress writes",
    )
    compressed = read_object(file, keys, what, "compress its run")
    rows = compressed["rows"].values() if isinstance(compressed["rows"], dict) else [None]
    whole = (isinstance(row, dict) and {"metrics", "parameters"} <= row.keys() for row in rows)
    require(all(whole), f"{file} is not {what}: its rows are not metrics; compress its run")
    return compressed
