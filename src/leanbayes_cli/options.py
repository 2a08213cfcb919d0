"""Arguments and options that several commands share.

Annotations are read by typer, so they are ordinary objects here.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from leanbayes_cli.names import complete_recipe


def output(help: str, metavar: str = "FILE", **options: Any) -> Any:
    """Return the option ``-o`` or ``--output``."""
    return typer.Option("-o", "--output", metavar=metavar, help=help, **options)


Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder that train wrote.")]
Samples = Annotated[
    int, typer.Option(min=1, metavar="N", help="Number of predictive samples (per member).")
]
Json = Annotated[
    Path | None,
    typer.Option(dir_okay=False, metavar="FILE", help="JSON file that also gets the results."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="One recipe key, as optimizer.lr=1e-3. Repeatable."
    ),
]
RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="Name from leanbayes recipes, or a YAML file.",
        autocompletion=complete_recipe,
    ),
]
Budget = Annotated[
    Literal["cpu", "paper"],
    typer.Option(help="Settings for about an hour on 2 cores, or the published ones."),
]
