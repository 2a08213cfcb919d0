"""The subcommands of ``leanbayes``, from data and recipes to a report.

Annotations are read by typer, so they are ordinary objects here. The package, and torch with it, is
imported by the command that needs it.
"""

import json
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from leanbayes_cli.data_commands import data_app
from leanbayes_cli.errors import console, in_a_sentence, say_next
from leanbayes_cli.evaluate import compare, evaluate, show_metrics
from leanbayes_cli.help import Command
from leanbayes_cli.new_and_export import export, new
from leanbayes_cli.options import Budget, Json, RecipeName, Run, Samples, Settings, output
from leanbayes_cli.recipe_list import recipes


def register(application: typer.Typer) -> None:
    """Add the subcommands to the application."""
    application.callback()(leanbayes)
    for panel, commands in {
        "Start": (
            (demo, "--seed 1 --json demo.json"),
            (new, "houses.csv --target price"),
            (selfcheck, ""),
        ),
        "Run": (
            (train, "k_tied/mnist-mlp-k2 --budget cpu --set seed=1"),
            (evaluate, "runs/mnist-mlp-k2 --samples 200"),
            (compare, "runs/a runs/b"),
            (predict, "runs/digits --input new.csv --output predictions.csv"),
            (report, "runs/a runs/b -o report.html"),
            (export, "runs/digits -o digits.onnx"),
        ),
        "Tune": ((sweep, "k_tied/mnist-mlp-k2 --trials 8"),),
        "Library": ((recipes, "k_tied"),),
    }.items():
        for command, example in commands:
            example = f"Example: leanbayes {command.__name__} {example}".rstrip()
            wrapped = command if command in (demo, recipes) else in_a_sentence(command)
            application.command(epilog=example, rich_help_panel=panel, cls=Command)(wrapped)
    application.add_typer(
        data_app(),
        name="data",
        help="Data sets: list, download and check them.",
        rich_help_panel="Library",
    )


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"leanbayes {version('leanbayes')}")
        raise typer.Exit


def leanbayes(
    wanted: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Honest uncertainty for any PyTorch network."""


def demo(
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=2**63, metavar="N", help="First random seed (weights, batches, noise)."
        ),
    ] = 42,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of seeds.")] = 2,
    epochs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Passes over the training images.")
    ] = 60,
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="Samples per prediction.")] = 20,
    every: Annotated[bool, typer.Option("--all", help="All posteriors, not five methods.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Three methods, one seed, at most 2 epochs.")
    ] = False,
    json: Json = None,
    out: Annotated[Path, output("Folder for report.html.", "FOLDER", file_okay=False)] = Path(
        "runs/demo"
    ),
) -> None:
    """Train five methods on scikit-learn's digits, compare them and write a report.

    No network is needed; one core takes less than a minute. Ctrl-C prints what is done so far.
    """
    from leanbayes.lab.demo.families import Settings, chosen
    from leanbayes.lab.demo.terminal import show

    if json is not None and not json.absolute().parent.is_dir():
        raise typer.BadParameter(f"the folder {json.parent} does not exist; make it first")
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise typer.BadParameter(
            f"nothing can be written to the folder {out} ({error.strerror or error}); choose "
            "another --output"
        ) from error
    settings = Settings(seed=seed, seeds=seeds, epochs=epochs, samples=samples)
    if quick:
        settings = replace(settings, seeds=1, epochs=min(epochs, 2))
    raise typer.Exit(
        show(settings, chosen(every=every, quick=quick), out / "report.html", json=json)
    )


def train(
    recipe: RecipeName,
    settings: Settings = None,
    out: Annotated[Path | None, output("Run folder; runs/NAME if not given.", "FOLDER")] = None,
    budget: Budget = "cpu",
    resume: Annotated[bool, typer.Option("--resume", help="Resume a stopped run.")] = False,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Processes that train together; not with torchrun or SLURM."
        ),
    ] = None,
    logger: Annotated[
        Literal["none", "csv", "tensorboard"], typer.Option(help="Logger besides metrics.csv.")
    ] = "none",
) -> None:
    """Train a recipe and evaluate it; all files are in one run folder."""
    from leanbayes.lab.launch import loggers_by_name
    from leanbayes.lab.recipe_files import recipe_to_train
    from leanbayes.lab.train import train as run

    resolved = recipe_to_train(recipe, budget=budget, settings=_settings(settings))
    folder = out or Path("runs") / resolved.name
    result = run(
        resolved,
        folder,
        resume=resume,
        devices=devices,
        loggers=loggers_by_name(logger, folder),
    )
    if result:  # only the first of several processes has one
        show_metrics(result["metrics"], f"{resolved.name}: {folder}")
        say_next("report", folder)


def predict(
    run: Run,
    input: Annotated[Path, typer.Option("-i", "--input", metavar="FILE", help="CSV, NPZ or NPY.")],
    output: Annotated[Path, output("CSV file to write.")],
    samples: Samples = 100,
) -> None:
    """Write predictions with their uncertainty to a CSV file."""
    from leanbayes.lab.predictions import predict_file

    written = predict_file(run, input, output, samples=samples)
    console().print(f"Written to {written}", soft_wrap=True)
    say_next("export", run, "-o", "model.onnx")


def sweep(
    recipe: RecipeName,
    settings: Settings = None,
    out: Annotated[
        Path | None, output("Folder of the sweep; sweeps/NAME if not given.", "FOLDER")
    ] = None,
    budget: Budget = "cpu",
    trials: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Maximum number of trials.")
    ] = None,
) -> None:
    """Choose among the recipe's choices on validation data; several processes can share it."""
    from leanbayes.lab.recipe_files import recipe_to_train
    from leanbayes.lab.sweep import sweep as search

    resolved = recipe_to_train(recipe, budget=budget, settings=_settings(settings))
    folder = out or Path("sweeps") / resolved.name
    chosen = search(resolved, folder, trials=trials)
    console().print_json(json.dumps(chosen, default=str), ensure_ascii=True)
    say_next("train", folder / "best.yaml")


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    output: Annotated[Path, output("HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page about runs; it works offline."""
    from leanbayes.lab.report import write_report
    from leanbayes.lab.runs import Run as Folder

    problems: list[str] = []
    written = write_report(runs, output, tell=problems.append)
    console().print(f"Written to {written}", soft_wrap=True)
    for problem in problems:
        console(stderr=True).print(f"leanbayes: {problem}", soft_wrap=True)
    if any(Folder(run).damage for run in runs):
        sys.exit(1)
    say_next(*(("compare", *runs[:2]) if len(runs) > 1 else ("export", runs[0])))


def selfcheck() -> None:
    """Check kernels, laws, one fit and one file on this machine; takes less than two minutes."""
    from leanbayes.lab.selfcheck import facts
    from leanbayes.lab.selfcheck import selfcheck as check

    shown = console()
    shown.print(facts(), soft_wrap=True)
    findings = check(lambda finding: shown.print(str(finding), soft_wrap=True))
    failed = [finding.name for finding in findings if finding.problem]
    shown.print(f"{len(findings) - len(failed)} of {len(findings)} checks passed", soft_wrap=True)
    if failed:
        raise ValueError(
            f"this installation must not be trusted, {failed[0]} failed. Set LEANBAYES_NATIVE=0 "
            "and check again; report the output above"
        )
    say_next("demo")


def _settings(pairs: list[str] | None) -> dict[str, Any]:
    """Return ``key=value`` pairs; values are read as YAML."""
    import yaml

    from leanbayes.lab.recipe_files import parse_yaml

    settings: dict[str, Any] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"--set {pair!r} is not of the form key=value")
        try:
            settings[key] = parse_yaml(value)
        except (yaml.YAMLError, ValueError) as error:
            raise ValueError(
                f"--set {pair!r} has a value that is not valid YAML; put quotes around it"
            ) from error
    return settings
