"""The demo on a terminal: progress, one table, and where the page is."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from leanbayes.lab.console import PlainConsole
from leanbayes.lab.demo import page, results
from leanbayes.lab.demo.columns import Column, columns, legend
from leanbayes.lab.demo.conclusions import conclusions
from leanbayes.lab.demo.families import FAMILIES, QUICK, Family, Settings
from leanbayes.lab.demo.results import Result
from leanbayes.lab.files import write_json
from leanbayes.lab.interrupts import exit_code, stopped_by

_WIDE = 100


def show(
    settings: Settings,
    out: Path,
    *,
    quick: bool = False,
    json: Path | None = None,
    processes: int = 1,
) -> int:
    """Run the demo, print what it says and its table, and write its page; returns the exit code."""
    console, done = Console(), list[Result]()
    families = QUICK if quick else FAMILIES
    torch.set_num_threads(1)  # matrices this small are slower on two
    start, complete, code = time.perf_counter(), True, 0
    with TemporaryDirectory() as folder:
        try:
            coming = results.run(families, settings, Path(folder), processes=processes)
            _train(families, coming, console, done)
        except KeyboardInterrupt as stopped:
            complete, code = False, exit_code(stopped)
            console.print(
                f"Stopped by {stopped_by(stopped)} after {len(done)} of {len(families)} families."
            )
        seconds = time.perf_counter() - start
        said = conclusions(done) if done else []
        if done:
            _print(done, said, legend(done, settings, seconds), console)
        if json is not None:
            told = results.report(done, settings, said, seconds=seconds, complete=complete)
            write_json(json, told)
            PlainConsole().print(f"Written to {json}.", soft_wrap=True)
        if not complete:
            return code
        return _write(
            lambda: page.write_page(done, settings, Path(folder), out, seconds=seconds), out
        )


def _write(page: Callable[[], object], out: Path) -> int:
    """Write the page, and say where it is or why it is not; returns the exit code."""
    console = PlainConsole()
    try:
        with console.status("Writing the report"):
            page()
    except OSError as error:
        console.print(f"The report could not be written to {out}: {error}.")
        return 1
    except KeyboardInterrupt as stopped:
        console.print(f"Stopped by {stopped_by(stopped)} before the report was written.")
        return exit_code(stopped)
    console.print(f"Report: {out.absolute()}", soft_wrap=True)
    return 0


def _train(
    families: Sequence[Family], coming: Generator[Result], console: Console, done: list[Result]
) -> None:
    """A bar over families on a terminal; one line a family anywhere else."""
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    width = max(len(family.name) for family in families)
    hidden = not console.is_terminal
    bars = Progress(*columns, console=console, transient=True, disable=hidden)
    with closing(coming), bars as progress:
        bar = progress.add_task("", total=len(families))
        for family in families:
            progress.update(bar, description=f"{family.name:<{width}}")
            result = next(coming)
            done.append(result)
            progress.advance(bar)
            if hidden:
                accuracy = 100 * result.score("accuracy").value
                console.print(
                    f"{len(done):>2}/{len(families)} {family.name:<{width}} "
                    f"accuracy {accuracy:.1f} % in {result.seconds:.1f} s",
                    highlight=False,
                )


def _print(done: Sequence[Result], said: Sequence[str], notes: str, console: Console) -> None:
    """Conclusions first, then what they were drawn from."""
    for sentence in said:
        console.print(f"• {sentence}", highlight=False)
    console.print()
    console.print(_table(done, wide=console.width >= _WIDE))
    console.print(notes, style="dim", highlight=False)


def _cells(column: Column, results: Sequence[Result], *, wide: bool) -> list[str]:
    """The column's texts; those that show the best value are bold, wide ones have errors."""
    texts = [column.text(result) for result in results]
    best = column.form.format(column.best(map(column.value, results))) if column.best else None
    shown = [f"[bold]{text}[/]" if text == best else text for text in texts]
    errors = [column.error(result) if wide else "" for result in results]
    return [
        f"{text}[dim]{error}[/]{column.mark(result)}"
        for text, error, result in zip(shown, errors, results, strict=True)
    ]


def _table(results: Sequence[Result], *, wide: bool) -> Table:
    """One row a family; wide tables add standard errors."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("\nfamily", no_wrap=True)
    shown = [column for column in columns(results) if column.short]
    for column in shown:
        table.add_column(column.short, justify="right", no_wrap=True)
    cells_of = [_cells(column, results, wide=wide) for column in shown]
    groups = [result.group for result in results]
    for index, (result, *cells) in enumerate(zip(results, *cells_of, strict=True)):
        last_of_group = groups[index] != groups[min(index + 1, len(groups) - 1)]
        table.add_row(result.name, *cells, end_section=last_of_group)
    return table
