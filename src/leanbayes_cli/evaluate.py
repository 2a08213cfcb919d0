"""The command ``evaluate`` and its table of metrics.

Annotations are read by typer, so they are ordinary objects here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from leanbayes_cli.errors import console

Run = Annotated[Path, typer.Argument(help="A run folder, as train writes it.")]
Samples = Annotated[int, typer.Option(min=1, help="Predictive draws (of every member).")]


def evaluate(
    run: Run,
    samples: Samples = 100,
    data: Annotated[str | None, typer.Option(help="Another data set, or your CSV or NPZ.")] = None,
    corrupt: Annotated[
        str | None, typer.Option(help="A corruption of the images, or all of them.")
    ] = None,
    severity: Annotated[int, typer.Option(min=1, max=5, help="How strong one is.")] = 3,
    foreign: Annotated[
        str | None, typer.Option(help="A data set to tell from the run's own, by uncertainty.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Errors that mCE is relative to, with --corrupt all.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write the results to this file.")
    ] = None,
) -> None:
    """Evaluate a trained run, also on other or corrupted data."""
    from leanbayes.lab.evaluation import evaluate_run, foreign_scores
    from leanbayes.lab.files import write_json
    from leanbayes.lab.robustness import evaluate_corruptions
    from leanbayes.lab.runs import Run as Folder

    Folder(run).check_result()
    if baseline is not None and corrupt != "all":
        raise ValueError("a baseline is for mCE, an average; give --corrupt all with it")
    if corrupt == "all":
        found = evaluate_corruptions(
            run, samples=samples, data=data, baseline=baseline, tell=_show_corruption
        )
        _show_corruption("mean", found.of())
        console().print(found.coverage, soft_wrap=True)
        if json is not None:
            write_json(json, found.to_dict())
        return
    metrics = evaluate_run(run, samples=samples, data=data, corrupt=corrupt, severity=severity)
    if foreign is not None:
        metrics |= foreign_scores(run, foreign, samples=samples)
    show_metrics(metrics, str(run))
    if json is not None:
        write_json(json, metrics)


def _show_corruption(name: str, means: Mapping[str, float]) -> None:
    numbers = "   ".join(f"{metric} {value:.4f}" for metric, value in means.items())
    console().print(f"{name:<18} {numbers}", soft_wrap=True)


def show_metrics(metrics: dict[str, dict[str, float]], title: str) -> None:
    """A table of metrics with their standard errors."""
    units = "Numbers are in the units that the network was trained on."
    caption = units if "squared_error" in metrics else None
    shown = Table("metric", "value", "± standard error", title=title, caption=caption)
    for name, estimate in metrics.items():
        shown.add_row(name, f"{estimate['value']:.4f}", f"{estimate['error']:.4f}")
    console().print(shown)
