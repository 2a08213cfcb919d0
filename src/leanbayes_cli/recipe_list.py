"""The command ``recipes``, which reads recipe files without importing torch."""

import json
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from leanbayes_cli.errors import in_a_sentence, say_next
from leanbayes_cli.names import recipe_index


def recipes(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Paper, or the start of a recipe's name.")
    ] = "",
    show: Annotated[bool, typer.Option("--show", help="Print the YAML of one recipe.")] = False,
) -> None:
    """List the recipes that come with leanbayes, and the minutes that each takes on 2 cores."""
    index = recipe_index()
    names = index.recipe_names(name)
    if show or not names:
        _print_yaml(recipe=name)
        return
    minutes = json.loads((index.RECIPES / "minutes.json").read_text(encoding="utf-8"))
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for heading in ("name", "description", "epochs", "minutes"):
        numeric = heading in ("epochs", "minutes")
        shown.add_column(heading, no_wrap=True, justify="right" if numeric else "left")
    for each in names:
        shown.add_row(each, *_facts(_values(each)), f"{minutes[each]:,}" if each in minutes else "")
    wide = Console(markup=False, emoji=False, highlight=False)
    whole = wide.measure(shown, options=wide.options.update(width=200)).maximum
    wide.width = max(wide.width, whole)  # names are there to be copied
    wide.print(shown)
    wide.print(
        "Epochs: of the default --budget cpu, and as published. Minutes: measured with --budget "
        "cpu on 2 cores; empty where not measured.",
        soft_wrap=True,
    )
    say_next("train", names[0])


@in_a_sentence
def _print_yaml(*, recipe: str) -> None:
    from leanbayes.lab.console import printable
    from leanbayes.lab.recipe_files import read_recipe

    read_recipe(recipe)
    print(printable(recipe_index().recipe_path(recipe).read_text(encoding="utf-8")), end="")


def _values(name: str) -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(recipe_index().recipe_path(name).read_text(encoding="utf-8"), Loader=loader)


def _facts(values: dict[str, Any]) -> tuple[str, str]:
    """One line about a recipe, and its epochs with the budget of two cores and as published."""
    row = values.get("published", {}).get("row")
    spec = values.get("posterior")
    posterior = spec.get("kind", "") if isinstance(spec, dict) else str(spec or "deterministic")
    described = f"{values['architecture']['name']} on {values['data']['name']}, {posterior}"
    paper = values["training"]["epochs"]
    cpu = values.get("budgets", {}).get("cpu", {}).get("training.epochs", paper)
    return row or described, f"{cpu} of {paper}"
