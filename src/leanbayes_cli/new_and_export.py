"""The commands ``new`` and ``export``.

Annotations are read by typer, so they are ordinary objects here.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from leanbayes_cli.errors import console, say_next
from leanbayes_cli.options import Run, output


def new(
    table: Annotated[Path, typer.Argument(metavar="CSV", help="CSV file, one example per row.")],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Name or number of the column to predict; the last if not given."
        ),
    ] = None,
    task: Annotated[
        Literal["classification", "regression"] | None,
        typer.Option(help="Kind of target, if it should not be inferred."),
    ] = None,
    out: Annotated[Path | None, output("Recipe file to write; NAME.yaml if not given.")] = None,
) -> None:
    """Create a recipe from your CSV (columns, sizes and likelihood are inferred)."""
    from leanbayes.lab.new_recipe import new_recipe

    written = new_recipe(table, out, target=target, task=task)
    for sentence in written.told:
        console().print(sentence, soft_wrap=True)
    console().print(f"Written to {written.path}", soft_wrap=True)
    say_next("train", written.path)


def export(
    run: Run,
    output: Annotated[Path, output("ONNX file to write.")] = Path("model.onnx"),
    samples: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Predictive samples (per member); 0: the mean network."
        ),
    ] = 20,
    noise: Annotated[
        Literal["graph", "input"], typer.Option(help="Drawn in the graph, or given as an input.")
    ] = "graph",
) -> None:
    """Export a trained run to ONNX, from raw inputs to predictions in their own units."""
    from leanbayes.lab.export_run import export_run

    written = export_run(run, output, samples=samples or None, noise=noise)
    console().print(f"Written to {written}", soft_wrap=True)
    say_next("evaluate", run)
