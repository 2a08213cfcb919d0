"""Recipe files: their folder, and how they are read; the papers' come with the package."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError

from leanbayes.lab.architectures import ARCHITECTURES
from leanbayes.lab.data.sources import SOURCES
from leanbayes.lab.optimizers import OPTIMIZERS
from leanbayes.lab.recipe import Budget, Recipe, check_recipe
from leanbayes.lab.recipe_names import recipe_path

_MOST_VALUES = 10_000
_DEEPEST = 50


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads ``1e-3`` as a word; everybody who writes it means a number.

    An alias counts as much as what it stands for, so that few lines cannot become many values.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0
        self._depth = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        before, alias = self._values, self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ComposerError(None, None, f"more than {_DEEPEST} levels are nested")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if alias and id(node) not in self._sizes:
            raise ComposerError(None, None, "an alias contains itself")
        self._values += self._sizes[id(node)] if alias else 1
        if self._values > _MOST_VALUES:
            raise ComposerError(None, None, f"it has more than {_MOST_VALUES} values")
        self._sizes.setdefault(id(node), self._values - before)
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str) -> Any:
    """Read YAML without tags that could construct objects, and not more than a recipe holds."""
    return yaml.load(text, Loader=_Loader)


def read_recipe(
    recipe: str | Path, *, budget: Budget = "paper", settings: Mapping[str, Any] | None = None
) -> Recipe:
    """Read a recipe, apply a budget and single settings, and check everything.

    Args:
        recipe: its name, as :func:`recipe_names` lists them, or the path of a YAML file.
        budget: ``paper`` for the published settings, ``cpu`` for what 2 cores do in an hour.
        settings: dotted keys and their values, such as ``{"optimizer.lr": 1e-3}``.
    """
    path = recipe_path(recipe)
    values = _under_budget(_read_values(path), budget)
    return check_recipe(apply_settings(values, settings or {}), str(path))


def recipe_to_train(
    recipe: str | Path, *, budget: Budget, settings: Mapping[str, Any] | None = None
) -> Recipe:
    """Read a recipe as :func:`read_recipe` does; raise if it cannot be trained as it is asked for.

    A budget does not replace the data set: who trains on another one names it.
    """
    chosen = read_recipe(recipe, budget=budget, settings=settings)
    published = read_recipe(recipe, settings=settings).data.name
    SOURCES.require_installed(published)
    ARCHITECTURES.require_installed(chosen.architecture.name)
    OPTIMIZERS.require_installed(chosen.optimizer.name)
    if chosen.data.name != published:
        raise ValueError(
            f"recipe {str(recipe)!r} is for the data set {published!r}, and the budget {budget!r} "
            f"would replace it by {chosen.data.name!r}; add --set data.name={chosen.data.name} to "
            "train on that, or --budget paper"
        )
    return chosen


def _read_values(path: Path) -> dict[str, Any]:
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        one_line = str(error).replace("\n", " ")
        raise ValueError(f"recipe {path} is not valid YAML: {one_line}") from error
    if not isinstance(values, dict):
        raise ValueError(f"recipe {path} is not a mapping of keys to values")
    return values


def _under_budget(values: dict[str, Any], budget: Budget) -> dict[str, Any]:
    """With the budget's settings; budgets that are none stay as they are, to be refused."""
    budgets = values.get("budgets", {})
    if not isinstance(budgets, Mapping):
        return values
    if budgets and budget not in budgets:
        values = {**values, "cut": ""}
    settings = budgets.get(budget, {})
    named = isinstance(settings, Mapping) and all(isinstance(key, str) for key in settings)
    return apply_settings(values, settings) if named else values


def apply_settings(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with dotted keys set."""
    changed: dict[str, Any] = {k: _copy(v) for k, v in values.items()}
    for dotted, value in settings.items():
        *parents, last = dotted.split(".")
        target = changed
        for parent in parents:
            below = target.get(parent)
            target[parent] = below = below if isinstance(below, dict) else {}
            target = below
        target[last] = value
    return changed


def _copy(value: Any) -> Any:
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, Mapping) else value
