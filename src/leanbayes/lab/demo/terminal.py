"""The demo on a terminal: progress, the verdict, one table and the next steps."""

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from leanbayes.lab.console import PlainConsole
from leanbayes.lab.demo import page, results
from leanbayes.lab.demo.families import Family, Settings
from leanbayes.lab.demo.results import Result
from leanbayes.lab.files import write_json
from leanbayes.lab.interrupts import exit_code, interruptible, stopped_by


def show(
    settings: Settings, families: Sequence[Family], out: Path, *, json: Path | None = None
) -> int:
    """Run the demo, print verdict and table, write its page, and return the exit code."""
    console, done, code = Console(highlight=False), list[Result](), 0
    start, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small are slower on two
    try:
        with interruptible(), closing(results.run(families, settings)) as coming:
            names = track(families, "Training", console=console, transient=True)
            for _ in names if console.is_terminal else families:
                done.append(next(coming))
    except KeyboardInterrupt as stopped:
        code = exit_code(stopped)
        console.print(
            f"Stopped by {stopped_by(stopped)} after {len(done)} of {len(families)} methods."
        )
    finally:
        torch.set_num_threads(threads)
    if done:
        console.print(results.verdict(done))
        console.print(table(done))
        console.print(page.legend(done, settings, time.perf_counter() - start), style="dim")
    if json is not None:
        write_json(json, results.report(done, settings, complete=not code))
        PlainConsole().print(f"Written to {json}", soft_wrap=True)
    return code or _finish(done, settings, out)


def _finish(done: Sequence[Result], settings: Settings, out: Path) -> int:
    """Write the page and print what to do next; return the exit code."""
    console = PlainConsole()
    try:
        page.write_page(done, settings, out)
    except OSError as error:
        said = f"leanbayes: the report could not be written to {out}: {error}"
        PlainConsole(stderr=True).print(said, soft_wrap=True)
        return 1
    console.print(f"Written to {out.absolute()}", soft_wrap=True)
    console.print("Next: leanbayes new YOUR.csv   # your data")
    console.print("      leanbayes recipes        # larger networks")
    return 0


def table(done: Sequence[Result]) -> Table:
    """Return one row per method; a star marks a difference of more than two standard errors."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    for index, heading in enumerate(page.HEADINGS):
        shown.add_column(heading, justify="right" if index else "left", no_wrap=not index)
    for row in page.rows(done):
        shown.add_row(*row)
    return shown
