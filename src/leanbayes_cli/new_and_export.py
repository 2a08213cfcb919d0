"""One's own table, and other programs: the commands ``new`` and ``export``.

Annotations are read by typer, so they are ordinary objects here.
"""

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from leanbayes_cli.errors import console
from leanbayes_cli.evaluate import Run


def new(
    table: Annotated[Path, typer.Argument(help="A CSV file, one example a row.")],
    target: Annotated[
        str | None, typer.Option(help="Name or number of the column to predict; the last one.")
    ] = None,
    task: Annotated[
        Literal["classification", "regression"] | None,
        typer.Option(help="If the target should not tell."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The recipe; NAME.yaml in this folder if not given.")
    ] = None,
) -> None:
    """Write a recipe for your own table: its columns, sizes and likelihood are found out."""
    from leanbayes.lab.new_recipe import new_recipe

    written = new_recipe(table, out, target=target, task=task)
    for sentence in written.told:
        console().print(sentence, soft_wrap=True)
    name = shlex.quote(str(written.path))
    console().print(
        f"Written to {written.path}; go on with: leanbayes train {name}", soft_wrap=True
    )


def export(
    run: Run,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file.")] = Path("model.onnx"),
    samples: Annotated[
        int, typer.Option(min=0, help="Predictive draws (of every member); 0: the mean network.")
    ] = 20,
    noise: Annotated[
        Literal["graph", "input"], typer.Option(help="Drawn in the graph, or given to it.")
    ] = "graph",
) -> None:
    """Write a trained run as an ONNX file, from raw inputs to answers in their own units."""
    from leanbayes.lab.export_run import export_run

    written = export_run(run, output, samples=samples or None, noise=noise)
    console().print(f"Written to {written}", soft_wrap=True)
