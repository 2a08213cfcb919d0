"""``robustness``: evaluate a run on corrupted images at every severity."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from leanbayes.lab.files import write_json
from leanbayes.lab.runs import Run as Folder
from leanbayes_cli.errors import console, in_a_sentence, say_next
from leanbayes_cli.options import Json, Run, Samples
from research.corruptions import PUBLISHED
from research.corruptions.robustness import evaluate_corruptions


def add_robustness(application: typer.Typer) -> None:
    """Add the command to an application."""
    example = "python -m research.lab robustness runs/fashion-mnist-resnet-gaussian"
    command = application.command(epilog=f"Example: {example}", rich_help_panel="Research")
    command(in_a_sentence(robustness))


def robustness(
    run: Run,
    samples: Samples = 100,
    data: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Another data set, or your NPZ file."),
    ] = None,
    corrupt: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One corruption; all that are published if not given."),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Reference errors for mCE.")
    ] = None,
    json: Json = None,
) -> None:
    """Evaluate a trained run on corrupted images: cNLL, cA and cECE over five severities."""
    Folder(run).check_result()
    kinds = PUBLISHED if corrupt is None else (corrupt,)
    found = evaluate_corruptions(
        run, samples=samples, data=data, baseline=baseline, kinds=kinds, tell=_show
    )
    _show("mean", found.of())
    console().print(found.coverage, soft_wrap=True)
    if json is not None:
        write_json(json, found.to_dict())
    say_next("report", run)


def _show(name: str, means: Mapping[str, float]) -> None:
    numbers = "   ".join(f"{metric} {value:.4f}" for metric, value in means.items())
    console().print(f"{name:<18} {numbers}", soft_wrap=True)
