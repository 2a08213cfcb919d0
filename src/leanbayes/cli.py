"""The ``leanbayes`` command. What it needs beyond torch is imported only when it runs."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch

if TYPE_CHECKING:
    import typer
    from rich.console import Console
    from rich.table import Table

    from leanbayes.lab.demo import Family, Result, Settings

__all__ = ["app", "main"]

_LAB = (
    *("PIL", "lightning", "matplotlib", "numpy", "optuna", "pooch", "pydantic"),
    *("rich", "sklearn", "tensorboard", "torchmetrics", "typer", "yaml"),
)
_WIDE = 110
_INTERRUPTED = 130  # what a shell reports for Ctrl-C


def main() -> None:
    """Run the command; without the lab extra, say how to get it."""
    try:
        app()()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _LAB:
            raise
        sys.exit(f"leanbayes: {error.name} is not installed; run pip install 'leanbayes[lab]'")


def app() -> "typer.Typer":
    """Make the command-line application."""
    import typer

    from leanbayes.lab.commands import register

    application = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich")

    @application.callback()
    def leanbayes() -> None:
        """Honest uncertainty for any PyTorch network."""

    @application.command(epilog="Example: leanbayes demo --seed 1 --json demo.json")
    def demo(
        seed: Annotated[int, typer.Option(min=0, help="Of weights, batches and noise.")] = 42,
        epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 40,
        samples: Annotated[int, typer.Option(min=1, help="Draws for each prediction.")] = 20,
        quick: Annotated[
            bool, typer.Option("--quick", help="Three families, at most 2 epochs.")
        ] = False,
        json: Annotated[
            Path | None, typer.Option(dir_okay=False, help="Also write the results to this file.")
        ] = None,
        out: Annotated[
            Path, typer.Option(file_okay=False, help="The folder for report.html.")
        ] = Path("runs/demo"),
    ) -> None:
        """Train every family on scikit-learn's digits, print one table and write a report.

        No network is needed; two cores take less than two minutes.
        Ctrl-C stops and prints what is done so far.
        """
        if json is not None and not json.absolute().parent.is_dir():
            raise typer.BadParameter(f"the folder {json.parent} does not exist; make it first")
        try:
            _check_folder(out)
        except OSError as error:
            reason = error.strerror or error
            raise typer.BadParameter(
                f"nothing can be written to the folder {out} ({reason}); choose another --out"
            ) from error
        page = out / "report.html"
        raise typer.Exit(_demo(seed, epochs, samples, quick=quick, path=json, page=page))

    register(application)
    return application


def _check_folder(folder: Path) -> None:
    """Make a folder, and raise now rather than after the training if it takes no file."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _demo(
    seed: int, epochs: int, samples: int, *, quick: bool, path: Path | None, page: Path
) -> int:
    """Run, show and write the demo; returns the exit code."""
    from rich.console import Console

    from leanbayes.lab.demo import FAMILIES, QUICK, Settings, legend, report
    from leanbayes.lab.files import write_json

    console = Console()
    families = QUICK if quick else FAMILIES
    settings = Settings(seed=seed, epochs=min(epochs, 2) if quick else epochs, samples=samples)
    results: list[Result] = []
    torch.set_num_threads(1)  # matrices this small are slower on two
    start, complete = time.perf_counter(), True
    try:
        _train_with_progress(families, settings, console, results.append)
    except KeyboardInterrupt:
        complete = False
    seconds = time.perf_counter() - start
    if not complete:
        console.print(f"Stopped by Ctrl-C after {len(results)} of {len(families)} families.")
    if results:
        console.print(_table(results, wide=console.width >= _WIDE))
        console.print(legend(settings, seconds), style="dim", highlight=False)
    if path is not None:
        write_json(path, report(results, settings, seconds=seconds, complete=complete))
        console.print(f"Written to {path}.", highlight=False, soft_wrap=True)
    return _write_page(results, settings, page, seconds, console) if complete else _INTERRUPTED


def _write_page(
    results: "Sequence[Result]",
    settings: "Settings",
    page: Path,
    seconds: float,
    console: "Console",
) -> int:
    """Write the report and say where it is; returns the exit code."""
    from leanbayes.lab.demo_report import write_page

    try:
        with console.status("Writing the report"):
            write_page(results, settings, page, seconds=seconds)
    except OSError as error:
        console.print(f"The report could not be written to {page}: {error}.", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("Stopped by Ctrl-C before the report was written.")
        return _INTERRUPTED
    console.print(f"Report: {page.absolute()}", highlight=False, soft_wrap=True)
    return 0


def _train_with_progress(
    families: "Sequence[Family]",
    settings: "Settings",
    console: "Console",
    on_result: "Callable[[Result], object]",
) -> None:
    """Bars over families and epochs on a terminal; one line a family anywhere else."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    from leanbayes.lab.demo import run

    columns: list[Any] = ["{task.description}", BarColumn(), MofNCompleteColumn()]
    width = max(len(family.name) for family in families)
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        overall = progress.add_task(f"{'families':<{width}}", total=len(families))
        current = progress.add_task("", total=settings.epochs)

        def on_epoch(family: "Family") -> None:
            progress.advance(current)

        results = run(families, settings, on_epoch)
        for done, family in enumerate(families, 1):
            epochs = settings.epochs * family.networks
            progress.reset(current, total=epochs, description=f"{family.name:<{width}}")
            result = next(results)
            on_result(result)
            progress.advance(overall)
            if not console.is_terminal:
                console.print(
                    f"{done:>2}/{len(families)} {family.name:<{width}} "
                    f"accuracy {100 * result.accuracy.value:.1f} % in {result.seconds:.1f} s",
                    highlight=False,
                )


@dataclass(frozen=True)
class _Column:
    """How one number of a result is shown.

    Args:
        header: over the column.
        value: takes the number out of a result.
        form: its format.
        best: which value is the best one, if any is.
        more: what a wide table adds to it.
    """

    header: str
    value: "Callable[[Result], float]"
    form: str = "{:.3f}"
    best: Callable[[Iterable[float]], float] | None = None
    more: "Callable[[Result], str]" = lambda result: ""

    def cells(self, results: "Sequence[Result]", *, wide: bool) -> list[str]:
        """The column's texts; those that show the best value are bold."""
        texts = [self.form.format(self.value(result)) for result in results]
        best = self.form.format(self.best(map(self.value, results))) if self.best else None
        shown = [f"[bold]{text}[/]" if text == best else text for text in texts]
        if not wide:
            return shown
        return [f"{text}[dim]{self.more(r)}[/]" for text, r in zip(shown, results, strict=True)]


_COLUMNS = (
    _Column(
        "acc.\n%",
        lambda r: 100 * r.accuracy.value,
        "{:.1f}",
        max,
        lambda r: f" ± {100 * r.accuracy.error:.1f}",
    ),
    _Column("\nNLL", lambda r: r.nll.value, best=min, more=lambda r: f" ± {r.nll.error:.3f}"),
    _Column("\nECE", lambda r: r.calibration_error, best=min),
    _Column("AUROC\ninv.", lambda r: r.auroc_inverted, best=max),
    _Column("AUROC\nshuf.", lambda r: r.auroc_shuffled, best=max),
    _Column(
        "para-\nmeters",
        lambda r: r.relative_parameters,
        "{:.2f}×",
        more=lambda r: f" {r.parameters:>7,}",
    ),
    _Column(
        "step\ncost",
        lambda r: r.step_cost.median,
        "{:.1f}×",
        more=lambda r: f" {r.step_cost.low:>4.1f}–{r.step_cost.high:.1f}",
    ),
)


def _table(results: "Sequence[Result]", *, wide: bool) -> "Table":
    """One row a family; wide tables add standard errors, counts and quartiles."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("\nfamily", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column.header, justify="right", no_wrap=True)
    columns = [column.cells(results, wide=wide) for column in _COLUMNS]
    groups = [result.group for result in results]
    for index, (result, *cells) in enumerate(zip(results, *columns, strict=True)):
        last_of_group = groups[index] != groups[min(index + 1, len(groups) - 1)]
        table.add_row(result.name, *cells, end_section=last_of_group)
    return table
