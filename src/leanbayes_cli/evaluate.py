"""The commands ``evaluate`` and ``compare``, and the table of metrics.

Annotations are read by typer, so they are ordinary objects here.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from leanbayes_cli.errors import console, say_next
from leanbayes_cli.options import Json, Run, Samples


def evaluate(
    run: Run,
    samples: Samples = 100,
    data: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Another data set, or your CSV or NPZ file."),
    ] = None,
    ood: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Data set for OOD detection by entropy."),
    ] = None,
    json: Json = None,
) -> None:
    """Evaluate a trained run on its test set or on other data."""
    from leanbayes.lab.evaluation import evaluate_run, foreign_scores
    from leanbayes.lab.files import write_json
    from leanbayes.lab.runs import Run as Folder

    Folder(run).check_result()
    metrics = evaluate_run(run, samples=samples, data=data)
    if ood is not None:
        metrics |= foreign_scores(run, ood, samples=samples)
    show_metrics(metrics, str(run))
    if json is not None:
        write_json(json, metrics)
    say_next("report", run)


def compare(
    run: Run,
    other: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder to compare with it.")],
    samples: Samples = 100,
    json: Json = None,
) -> None:
    """Compare two runs on the same test set: paired differences with standard errors."""
    from leanbayes.lab.evaluation import compare_runs
    from leanbayes.lab.files import write_json

    found = compare_runs(run, other, samples=samples)
    shown = Table("metric", str(run), str(other), "difference")
    for name, scores in found.items():
        star = " *" if scores.is_significant else ""
        shown.add_row(name, str(scores.first), str(scores.second), f"{scores.difference!r}{star}")
    console().print(shown)
    console().print(
        "Difference: second less first, paired by test example, ± one standard error; * exceeds "
        "two. The error covers test examples, not seeds.",
        soft_wrap=True,
    )
    if json is not None:
        write_json(
            json,
            {n: {k: s._asdict() for k, s in c._asdict().items()} for n, c in found.items()},
        )
    say_next("report", run, other)


def show_metrics(metrics: dict[str, dict[str, float]], title: str) -> None:
    """Print a table of metrics with their standard errors."""
    units = "Numbers are in the units that the network was trained on."
    caption = units if "squared_error" in metrics else None
    shown = Table("metric", "value", "± standard error", title=title, caption=caption)
    for name, estimate in metrics.items():
        shown.add_row(name, f"{estimate['value']:.4f}", f"{estimate['error']:.4f}")
    console().print(shown)
