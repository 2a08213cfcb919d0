"""Names on a command line, resolved before the package and torch are imported."""

import functools
import sys
from collections.abc import Mapping
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any


@functools.cache
def recipe_index() -> ModuleType:
    """Return ``leanbayes.lab.recipe_names``, loaded without the package that it is part of."""
    (package,) = getattr(find_spec("leanbayes"), "submodule_search_locations", None) or [""]
    file = Path(package) / "lab" / "recipe_names.py"
    spec = spec_from_file_location("leanbayes_cli._recipe_index", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def complete_recipe(incomplete: str) -> list[str]:
    """Return names for the shell's completion."""
    return recipe_index().recipe_names(incomplete)


def printable(text: str) -> str:
    """Return escape a text that has control characters."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def check_names(given: Mapping[str, Any]) -> None:
    """Exit with a sentence if a recipe or a run folder among the arguments does not exist."""
    try:
        if "recipe" in given:
            recipe_index().recipe_path(given["recipe"])
        for run in (*given.get("runs", ()), *(given[n] for n in ("run", "other") if n in given)):
            if not (Path(run) / "recipe.yaml").is_file():
                raise FileNotFoundError(
                    f"{run} is not a run folder (no recipe.yaml); give a folder that leanbayes "
                    "train has written"
                )
    except FileNotFoundError as error:
        sys.exit(f"leanbayes: {printable(str(error))}")
