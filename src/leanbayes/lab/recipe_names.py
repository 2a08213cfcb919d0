"""Names and files of the recipes that come with leanbayes; imports the standard library only."""

import difflib
from pathlib import Path

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
"""The papers' recipes, ``PAPER/NAME.yaml``."""


def recipe_names(start: str = "") -> list[str]:
    """Return the recipes that come with leanbayes, all or those whose names start so."""
    paths = sorted(RECIPES.glob("*/*.yaml"))
    names = [path.relative_to(RECIPES).with_suffix("").as_posix() for path in paths]
    return [name for name in names if name.startswith(start)]


def recipe_path(recipe: str | Path) -> Path:
    """Return the file of a recipe, which is given by its name or by its path."""
    given = Path(recipe)
    if given.is_file():
        return given
    if given.suffix in (".yaml", ".yml"):
        raise FileNotFoundError(f"{given} does not exist; leanbayes recipes lists names")
    names = recipe_names()
    if given.as_posix() not in names:
        close = difflib.get_close_matches(given.as_posix(), names, 1)
        remedy = f"did you mean {close[0]!r}?" if close else "leanbayes recipes lists them"
        raise FileNotFoundError(f"recipe {str(given)!r} is unknown; {remedy}")
    return RECIPES / f"{given.as_posix()}.yaml"
