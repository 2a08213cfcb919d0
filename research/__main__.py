"""``python -m papers``: tables, pages and studies of the papers, from a checkout.

Annotations are read by typer, so they are ordinary objects here.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from leanbayes.errors import choose
from leanbayes.lab.console import one_line
from leanbayes.lab.files import write_bytes, write_json
from research.papers import PAPERS
from research.papers.k_tied.compression import compress_run
from research.papers.variance.commands import add_studies
from research.publishing.archive import archive as keep
from research.publishing.blocks import Blocks
from research.publishing.cells import experiments, markdown, merge_seeds
from research.publishing.index_pages import list_makers
from research.publishing.pages import refresh
from research.publishing.paper import DOCS
from research.publishing.results import compressed_runs, truncations
from research.publishing.results import table as rows_of

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The papers' tables and pages, from a checkout.",
)
LISTS = (DOCS / "papers" / "index.md", DOCS / "checklist.md", DOCS / "trust.md")
"""The pages about all papers and all tests."""


@app.command(epilog="Example: python -m papers table k_tied --runs runs")
def table(
    paper: Annotated[str, typer.Argument(help=f"One of {', '.join(PAPERS)}.")],
    runs: Annotated[
        Path | None, typer.Option(help="Run folders or files of results; the archived ones.")
    ] = None,
    every_seed: Annotated[
        bool, typer.Option("--every-seed", help="A line for every run, not the mean over seeds.")
    ] = False,
) -> None:
    """Print our numbers next to the published ones, from files of results."""
    chosen = choose("paper", paper, PAPERS)
    folder = runs or chosen.results
    if not folder.exists():
        print(f"{folder} does not exist: there are only published numbers", file=sys.stderr)
    rows = rows_of(chosen, [folder] if folder.exists() else [])
    for title, part in experiments(rows if every_seed else merge_seeds(rows)).items():
        print(f"{title}\n\n{markdown(part)}\n")
    compressed = compressed_runs(folder)
    for name in sorted(chosen.truncated.keys() | compressed.keys()):
        part = truncations(chosen, name, compressed.get(name))
        print(f"{name} after training\n\n{markdown(part)}\n")


@app.command(epilog="Example: python -m papers page k_tied")
def page(
    paper: Annotated[str | None, typer.Argument(help="Whose pages; all if not given.")] = None,
) -> None:
    """Make tables and pictures of pages anew, from the archived results."""
    for chosen in PAPERS.values() if paper is None else [choose("paper", paper, PAPERS)]:
        blocks = Blocks(chosen)
        for path in chosen.pages:
            print(f"Written to {refresh(path, blocks.makers(path))}")
        for name, png in blocks.pictures.items():
            write_bytes(chosen.folder / name, png)
    for path in () if paper else LISTS:
        print(f"Written to {refresh(path, list_makers(PAPERS.values(), path))}")


@app.command(epilog="Example: python -m papers compress runs/mnist-mlp-full --rank 1 --rank 2")
def compress(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    rank: Annotated[
        list[int] | None, typer.Option(min=1, help="A rank; may be repeated. 1, 2 and 3.")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option(help="A pattern of layers; may be repeated. All.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Predictive draws.")] = 100,
    out: Annotated[
        Path | None, typer.Option(help="The JSON file; compress.json in the run if not given.")
    ] = None,
) -> None:
    """Say what a trained run loses with standard deviations of a lower rank."""
    compressed = compress_run(
        run, rank or (1, 2, 3), include=include or ("**",), samples=samples, progress=True
    )
    for name, row in compressed["rows"].items():
        elbo, nll = (row["metrics"][metric]["value"] for metric in ("negative_elbo", "nll"))
        print(f"{name:<12} {row['parameters']:>9,} parameters  −ELBO {elbo:.4f}  NLL {nll:.4f}")
    print(f"Written to {write_json(out or run / 'compress.json', compressed)}")


@app.command(epilog="Example: python -m papers archive runs/mnist-mlp-k2 --out results/k_tied")
def archive(
    runs: Annotated[list[Path], typer.Argument(help="Finished run folders.")],
    out: Annotated[Path, typer.Option(help="The folder of results.")],
    label: Annotated[str, typer.Option(help="Goes into the names of the files.")] = "",
) -> None:
    """Keep result, recipe and curves of runs, a small file each, for tables and pages."""
    for run in runs:
        print(f"Written to {keep(run, out, label)}")


add_studies(app)


def main() -> None:
    """Run the command; what can be mended comes as one sentence instead of a traceback."""
    try:
        app()
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"papers: {one_line(error)}")


if __name__ == "__main__":
    main()
