"""``python -m studies``: studies of defaults and their pages, from a checkout.

Annotations are read by typer, so they are ordinary objects here.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from leanbayes.lab.console import one_line
from papers.tools.page import refresh
from papers.tools.paper import DOCS, ROOT
from studies.uci.published import SETS
from studies.uci.study import Row, fit_splits
from studies.uci.tables import makers

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="What defaults are worth, on real data."
)
_UCI = ROOT / "results" / "uci"


@app.callback()
def _studies() -> None:
    """Let a command be named even if it is the only one."""


@app.command(epilog="Example: python -m studies uci --data concrete --posterior k-tied")
def uci(
    data: Annotated[
        list[str] | None, typer.Option(help="A set; may be repeated. All seven.")
    ] = None,
    posterior: Annotated[
        list[str] | None, typer.Option(help="May be repeated. k-tied, mean-field, matrix-normal.")
    ] = None,
    noise: Annotated[str, typer.Option(help="learnt or predicted.")] = "learnt",
    splits: Annotated[int | None, typer.Option(min=1, help="The first so many; all.")] = None,
    out: Annotated[Path, typer.Option(help="The folder; stopped studies go on.")] = _UCI,
) -> None:
    """Fit estimators with their defaults to the UCI regression sets, split by split."""
    torch.set_num_threads(1)  # networks this small are slower on two
    for name in data or SETS:
        for each in posterior or ("k-tied", "mean-field", "matrix-normal"):
            row = Row(name, each, noise)
            count = min(splits or row.facts.splits, row.facts.splits)
            fit_splits(row, out, range(count), tell=_telling(row))
            print(f"Written to {out / row.file}")


def _telling(row: Row) -> Any:
    def tell(split: str, scores: Mapping[str, Any]) -> None:
        print(
            f"{row.data}, {row.posterior}, {split}: log likelihood "
            f"{scores['log_likelihood']:.3f}, RMSE {scores['rmse']:.3f}, "
            f"{100 * scores['coverage']:.0f} % inside, {scores['duration']:.1f} s",
            flush=True,
        )

    return tell


@app.command(epilog="Example: python -m studies page")
def page() -> None:
    """Make the tables of all pages anew, from the files of results."""
    print(f"Written to {refresh(DOCS / 'uci.md', makers(_UCI))}")


def main() -> None:
    """Run the command; what can be mended comes as one sentence instead of a traceback."""
    try:
        app()
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"studies: {one_line(error)}")


if __name__ == "__main__":
    main()
