"""Command of the k-tied paper."""

from pathlib import Path
from typing import Annotated

import typer

from leanbayes.lab.files import write_json
from research.options import RunFolder
from research.papers.k_tied.compression import compress_run

app = typer.Typer()


@app.command(epilog="Example: python -m research papers compress runs/mnist-mlp-full --rank 2")
def compress(
    run: RunFolder,
    rank: Annotated[
        list[int] | None, typer.Option(min=1, help="Rank; may be repeated. 1, 2 and 3.")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option(help="Pattern of layers; may be repeated. All.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of predictive samples.")] = 100,
    out: Annotated[
        Path | None, typer.Option(help="JSON file; compress.json in the run if not given.")
    ] = None,
) -> None:
    """Measure what a trained run loses with standard deviations of a lower rank."""
    compressed = compress_run(
        run, rank or (1, 2, 3), include=include or ("**",), samples=samples, progress=True
    )
    for name, row in compressed["rows"].items():
        elbo, nll = (row["metrics"][metric]["value"] for metric in ("negative_elbo", "nll"))
        print(f"{name:<12} {row['parameters']:>9,} parameters  −ELBO {elbo:.4f}  NLL {nll:.4f}")
    print(f"Written to {write_json(out or run / 'compress.json', compressed)}")
