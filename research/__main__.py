"""``python -m research``: studies, benchmarks and the pages made from their results."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from leanbayes.errors import choose
from leanbayes.lab.console import one_line
from leanbayes.lab.files import write_bytes
from research import extensions  # noqa: F401
from research import papers as folders
from research.benchmarks.commands import app as benchmarks
from research.benchmarks.commands import write_pages as write_performance
from research.measuring.tracer import trace as trace_calls
from research.measuring.tracer import write_block
from research.options import RunFolders
from research.papers import PAPERS
from research.publishing.archive import archive as archive_run
from research.publishing.blocks import Blocks
from research.publishing.cells import experiments, merge_seeds, rows_table
from research.publishing.index_pages import list_makers
from research.publishing.pages import refresh
from research.publishing.paper import DOCS, Paper
from research.publishing.results import compressed_runs, truncations
from research.publishing.results import table as rows_of
from research.studies.commands import app as studies
from research.studies.commands import write_pages as write_studies
from research.torch_range import app as versions
from research.torch_range import write_page as write_versions
from research.trust.commands import app as trust

LISTS = (
    *(DOCS / "papers" / "index.md", DOCS / "papers" / "what_holds.md"),
    *(DOCS / "checklist.md", DOCS / "trust.md"),
)
"""The pages about all papers and all tests."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Papers, studies and benchmarks of leanbayes, and their pages.",
)
papers = typer.Typer(no_args_is_help=True, help="Studies of the papers' claims.")
for folder in folders.__path__:
    for file in sorted(Path(folder).glob("*/commands.py")):
        papers.add_typer(import_module(f"{folders.__name__}.{file.parent.name}.commands").app)
app.add_typer(papers, name="papers")
app.add_typer(studies, name="studies")
app.add_typer(benchmarks, name="bench")
app.add_typer(trust, name="trust")
app.add_typer(versions)


@app.command(epilog="Example: python -m research table k_tied --runs runs")
def table(
    paper: Annotated[str, typer.Argument(help=f"One of {', '.join(PAPERS)}.")],
    runs: Annotated[
        Path | None, typer.Option(help="Run folders or files of results; the archived ones.")
    ] = None,
    every_seed: Annotated[
        bool, typer.Option("--every-seed", help="One line per run, not the mean over seeds.")
    ] = False,
) -> None:
    """Print our numbers next to the published ones, from files of results."""
    chosen = choose("paper", paper, PAPERS)
    folder = runs or chosen.results
    if not folder.exists():
        print(f"{folder} does not exist: there are only published numbers", file=sys.stderr)
    rows = rows_of(chosen, [folder] if folder.exists() else [])
    for title, part in experiments(rows if every_seed else merge_seeds(rows)).items():
        print(f"{title}\n\n{rows_table(part)}\n")
    compressed = compressed_runs(folder)
    for name in sorted(chosen.truncated.keys() | compressed.keys()):
        part = truncations(chosen, name, compressed.get(name))
        print(f"{name} after training\n\n{rows_table(part)}\n")


@app.command(epilog="Example: python -m research archive runs/mnist-mlp-k2 --out results/k_tied")
def archive(
    runs: RunFolders,
    out: Annotated[Path, typer.Option(help="Folder of results.")],
    label: Annotated[str, typer.Option(help="Part of the names of the files.")] = "",
) -> None:
    """Keep result, recipe and curves of runs, a small file each, for tables and pages."""
    for run in runs:
        print(f"Written to {archive_run(run, out, label)}")


def _write_paper(paper: Paper) -> None:
    blocks = Blocks(paper)
    for path in paper.pages:
        print(f"Written to {refresh(path, blocks.makers(path))}")
    for name, png in blocks.pictures.items():
        write_bytes(paper.folder / name, png)


def _write_lists() -> None:
    for path in LISTS:
        print(f"Written to {refresh(path, list_makers(PAPERS.values(), path))}")


PAGES: dict[str, Callable[[], object]] = {
    **{name: lambda paper=paper: _write_paper(paper) for name, paper in PAPERS.items()},  # type: ignore[misc]
    "lists": _write_lists,
    "studies": write_studies,
    "bench": write_performance,
    "trace": write_block,
    "versions": write_versions,
}


@app.command(epilog="Example: python -m research page k_tied")
def page(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(PAGES)}. All if not given.")
    ] = None,
) -> None:
    """Update tables and pictures of pages from the files of results."""
    for name in names or PAGES:
        choose("page", name, PAGES)()


@app.command(epilog="Example: python -m research trace")
def trace() -> None:
    """Count the files and functions of leanbayes that common calls enter."""
    print(trace_calls())


def main() -> None:
    """Run the command; print what the user can fix as one sentence instead of a traceback."""
    try:
        app()
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"research: {one_line(error)}")


if __name__ == "__main__":
    main()
