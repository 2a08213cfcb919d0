"""Commands that make the runs of a table again, from the recipes inside archived results."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from leanbayes.lab.architectures import ARCHITECTURES
from leanbayes.lab.data.sources import SOURCES
from leanbayes.lab.optimizers import OPTIMIZERS
from leanbayes.lab.recipe import Recipe, check_recipe
from research.publishing.results import recipes_by_budget

_ALL_IMAGES = 10_000
_NOT_TRAINED = {"budgets", "choices", "cut", "measurements", "published", "seed"}


class ArchivedRuns:
    """The recipes of all runs whose results are archived in a folder."""

    def __init__(self, results: Path, recipes: Path) -> None:
        self.results = results
        self.recipes = recipes

    @cached_property
    def by_name(self) -> Mapping[str, list[Recipe]]:
        """Recipes as they were run, one for each seed."""
        found: dict[str, list[Recipe]] = {}
        for file, content in self._files:
            for values in _recipes_inside(content):
                recipe = check_recipe(values, str(file))
                found.setdefault(recipe.name, []).append(recipe)
        return found

    def epochs(self, name: str) -> str:
        """Return epochs of the longest run of a recipe, of those that it plans: ``30 of 200``."""
        ran = max((recipe.training.epochs for recipe in self.by_name.get(name, ())), default=0)
        file = self.recipes / f"{name}.yaml"
        planned = recipes_by_budget(file)["paper"].training.epochs if file.is_file() else ran
        return f"{ran} of {planned}" if 0 < ran < planned else str(ran or "")

    @cached_property
    def _files(self) -> list[tuple[Path, Any]]:
        files = sorted(self.results.rglob("*.json"))
        return [(file, json.loads(file.read_text(encoding="utf-8"))) for file in files]

    def _runs(self, name: str) -> list[Recipe]:
        """Return the runs of a recipe, or what is to be run, with its published settings."""
        file = self.recipes / f"{name}.yaml"
        planned = [recipes_by_budget(file)["paper"]] if file.is_file() else []
        return self.by_name.get(name, planned)

    def _studied(self, name: str, study: str) -> str:
        """Return the command that measures a run, with the options that the archived study had."""
        options: tuple[str, ...] = ()
        for file, content in self._files:
            if file.stem == name or file.stem.startswith(f"{name}-seed"):
                options = tuple(_study_options(content, study)) or options
        return " ".join((f"python -m research papers {study} runs/{name}", *options))

    def commands(self, names: Iterable[str], study: str = "") -> str:
        """Return shell commands for these recipes, folded; empty if there are none.

        Args:
            names: of recipes, that were run or not; others are ignored.
            study: the command of ``python -m research papers`` that measures a run, if any.
        """
        runs = {name: self._runs(name) for name in dict.fromkeys(names)}
        known = [name for name, recipes in runs.items() if recipes]
        lines = training_commands(self.recipes, chain.from_iterable(runs.values()))
        if study and lines:
            lines += [self._studied(name, study) for name in known]
        return folded(lines)


def folded(lines: Iterable[str]) -> str:
    """Return commands below a table, which a reader unfolds; empty if there are none."""
    text = "\n".join(lines)
    start = "<details><summary>Commands</summary>"
    return f"{start}\n\n```sh\n{text}\n```\n\n</details>" if text else ""


def _recipes_inside(found: Any) -> Iterator[Mapping[str, Any]]:
    """The recipe of a result, and those of the parts of a study."""
    if not isinstance(found, Mapping):
        return
    if isinstance(found.get("recipe"), Mapping):
        yield found["recipe"]
    parts = found.get("parts")
    for part in parts.values() if isinstance(parts, Mapping) else ():
        yield from _recipes_inside(part)


def _study_options(content: Mapping[str, Any], study: str) -> Iterator[str]:
    """What a study was told besides the run: how many images and samples."""
    told = content.get("settings", content)
    wanted = {"compress": ("samples",), "rank1": ("images", "corrupted", "few", "samples")}
    for key in wanted.get(study, ("images",)):
        values = told.get(key)
        if not values or values == _ALL_IMAGES or (study == "compress" and "rows" not in content):
            continue
        for value in values if isinstance(values, list) else [values]:
            yield f"--{key} {value}"


def training_commands(folder: Path, runs: Iterable[Recipe]) -> list[str]:
    """Return one line for the seeds of every recipe."""
    seeds: dict[str, dict[str, list[int]]] = {}
    for recipe in runs:
        commands = seeds.setdefault(recipe.name, {})
        commands.setdefault(_command(folder, recipe), []).append(recipe.seed)
    return [
        with_seeds(command, known)
        for commands in seeds.values()
        for command, known in _unchanged(commands).items()
    ]


def _unchanged(commands: dict[str, list[int]]) -> dict[str, list[int]]:
    """Those without changes if there are any: the others have a table or picture of their own."""
    return {c: seeds for c, seeds in commands.items() if " --set " not in c} or commands


def with_seeds(command: str, seeds: Iterable[int]) -> str:
    """Return a training command with one seed, and the others in a comment."""
    first, *others = sorted(set(seeds), reverse=True)
    comment = f"  # and seed {', '.join(map(str, sorted(others)))}" if others else ""
    return f"{command} --set seed={first}{comment}"


def _command(folder: Path, recipe: Recipe) -> str:
    """Return program, recipe, budget, and the settings in which the run differs from both."""
    file = _file(folder, recipe.name)
    budgets = recipes_by_budget(file)
    changes = {budget: _changes(known, recipe) for budget, known in budgets.items()}
    budget = min(changes, key=lambda name: len(changes[name]))
    changed = changes[budget]
    if recipe.data.name != budgets["paper"].data.name:
        changed["data.name"] = recipe.data.name
    extended = recipe.data.name in SOURCES.checkout_only
    extended |= recipe.architecture.name in ARCHITECTURES.checkout_only
    extended |= recipe.optimizer.name in OPTIMIZERS.checkout_only
    program = "python -m research.lab" if extended else "leanbayes"
    settings = (shlex.quote(f"{key}={_yaml(value)}") for key, value in changed.items())
    start = f"{program} train {folder.name}/{file.stem} --budget {budget}"
    return " ".join((start, *(f"--set {setting}" for setting in settings)))


def _file(folder: Path, name: str) -> Path:
    """Return the recipe of this name, or the one whose name it begins with."""
    alike = [path for path in folder.glob("*.yaml") if name.startswith(path.stem)]
    if not alike:
        raise FileNotFoundError(f"{folder} has no recipe for {name}; give it one of that name")
    return max(alike, key=lambda path: len(path.stem))


def _changes(known: Recipe, run: Recipe) -> dict[str, Any]:
    """Return dotted keys that a run has otherwise, and its values."""
    before, after = (each.model_dump(mode="json", exclude=_NOT_TRAINED) for each in (known, run))
    return dict(_different(before, after))


def _different(
    before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Dotted keys whose values are others, and the new values."""
    for key in (*after, *(before.keys() - after.keys())):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping) and _alike(old, new):
            yield from _different(old, new, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", new


def _alike(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether keys can be set one by one: none is to go, and the kind stays."""
    return old.keys() <= new.keys() and old.get("kind") == new.get("kind")


def _yaml(value: Any) -> str:
    """Return one line of YAML, which JSON is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
