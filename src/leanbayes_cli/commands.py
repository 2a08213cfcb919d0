"""The subcommands of ``leanbayes``, from data and recipes to a report.

Annotations are read by typer, so they are ordinary objects here. The package, and torch with it, is
imported by the command that needs it.
"""

import json
import os
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich import box
from rich.table import Table

from leanbayes_cli.errors import console, in_a_sentence
from leanbayes_cli.evaluate import Run, Samples, evaluate, show_metrics
from leanbayes_cli.new_and_export import export, new

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one key, as optimizer.lr=1e-3; may be repeated."),
]
RecipeName = Annotated[
    str, typer.Argument(help="A name that leanbayes recipes lists, or a YAML file.")
]
Budget = Annotated[
    Literal["cpu", "paper"], typer.Option(help="What 2 cores do in an hour, or as published.")
]


def register(application: typer.Typer) -> None:
    """Add the subcommands to the application."""
    application.callback()(leanbayes)
    application.command(epilog="Example: leanbayes demo --seed 1 --json demo.json")(demo)
    data = typer.Typer(no_args_is_help=True, help="Data sets: where they lie, licences, checksums.")
    application.add_typer(data, name="data")
    data.command("list", epilog="Example: leanbayes data list")(in_a_sentence(data_list))
    data.command("fetch", epilog="Example: leanbayes data fetch mnist")(in_a_sentence(data_fetch))
    data.command("check", epilog="Example: leanbayes data check mnist")(in_a_sentence(data_check))
    for command, example in (
        (new, "houses.csv --target price"),
        (recipes, "k_tied"),
        (train, "k_tied/mnist-mlp-k2 --budget cpu --set seed=1"),
        (evaluate, "runs/mnist-mlp-k2 --samples 200"),
        (predict, "runs/digits --input new.csv --output predictions.csv"),
        (export, "runs/digits -o digits.onnx"),
        (sweep, "k_tied/mnist-mlp-k2 --trials 8"),
        (report, "runs/a runs/b -o report.html"),
    ):
        example = f"Example: leanbayes {command.__name__} {example}"
        application.command(epilog=example)(in_a_sentence(command))


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
        int, typer.Option(min=0, max=2**63, help="The first, of weights, batches and noise.")
    ] = 42,
    seeds: Annotated[int, typer.Option(min=1, help="How often to train every family.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 16,
    samples: Annotated[int, typer.Option(min=1, help="Draws for each prediction.")] = 20,
    quick: Annotated[
        bool, typer.Option("--quick", help="Three families, one seed, at most 2 epochs.")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write the results to this file.")
    ] = None,
    out: Annotated[Path, typer.Option(file_okay=False, help="The folder for report.html.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Train every family on scikit-learn's digits, say what came out and write a report.

    No network is needed; two cores take less than two minutes, and --seeds 1 less than one.
    Ctrl-C stops and prints what is done so far.
    """
    from leanbayes.lab.demo.families import Settings
    from leanbayes.lab.demo.terminal import show
    from leanbayes.lab.interrupts import interruptible

    if json is not None and not json.absolute().parent.is_dir():
        raise typer.BadParameter(f"the folder {json.parent} does not exist; make it first")
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise typer.BadParameter(
            f"nothing can be written to the folder {out} ({error.strerror or error}); choose "
            "another --out"
        ) from error
    settings = Settings(seed=seed, seeds=seeds, epochs=epochs, samples=samples)
    processes = min(os.cpu_count() or 1, 4)
    if quick:
        settings, processes = replace(settings, seeds=1, epochs=min(epochs, 2)), 1
    page = out / "report.html"
    with interruptible():
        code = show(settings, page, quick=quick, json=json, processes=processes)
    raise typer.Exit(code)


def data_list(
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Compare every file; takes a while.")
    ] = False,
) -> None:
    """List the data sets, where each lies, its licence, and whether its checksums are right."""
    from leanbayes.lab.data import listing

    shown = Table()
    for heading in ("name", "where", "size", "licence", "checksums"):
        shown.add_column(heading, overflow="fold", no_wrap=heading in ("name", "size"))
    for entry in listing(checksums=checksums):
        where = "not here" if entry.where is None and entry.size else str(entry.where or "embedded")
        size = f"{entry.size / 1e6:.1f} MB" if entry.size else ""
        shown.add_row(entry.name, where, size, entry.licence, str(entry.state))
    console().print(shown)


def data_fetch(name: Annotated[str, typer.Argument(help="A name from data list.")]) -> None:
    """Make sure that a data set is on this machine, whole."""
    from leanbayes.lab.data import fetch

    copy = fetch(name)
    told = "needs no files" if copy is None else f"lies in {copy.folder}"
    console().print(f"{name} {told}", soft_wrap=True)


def data_check(
    name: Annotated[str | None, typer.Argument(help="One data set; all, if not given.")] = None,
) -> None:
    """Compare the files on this machine with their checksums."""
    from leanbayes.lab.data import check

    states = check(name)
    shown = Table("data set", "file", "state")
    for file in states:
        shown.add_row(file.name, file.path.name, str(file.state))
    console().print(shown)
    damaged = [file for file in states if file.state == "wrong"]
    if damaged:
        raise ValueError(f"{damaged[0].path} has a wrong checksum; remove it and fetch it again")


def recipes(
    name: Annotated[str, typer.Argument(help="A paper, or how a name starts; all, if none.")] = "",
    show: Annotated[bool, typer.Option("--show", help="Print the YAML of one recipe.")] = False,
) -> None:
    """List the recipes that come with leanbayes, and what the budget of two cores cuts."""
    from leanbayes.lab.console import printable
    from leanbayes.lab.recipe_files import read_recipe, recipe_names, recipe_path

    names = recipe_names(name)
    if show or not names:
        read_recipe(name)
        print(printable(recipe_path(name).read_text(encoding="utf-8")), end="")
        return
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for heading in ("name", "data", "network", "posterior", "budget of 2 cores"):
        shown.add_column(heading, no_wrap=True)
    for each in names:
        paper, cpu = read_recipe(each), read_recipe(each, budget="cpu")
        posterior = type(paper.posterior).__name__ if paper.posterior else "none"
        changed = paper.budgets.get("cpu", {})
        epochs = f"{cpu.training.epochs} of {paper.training.epochs} epochs"
        cut = f"{epochs}, {len(changed) - 1} more" if changed else "nothing cut"
        shown.add_row(each, paper.data.name, paper.architecture.name, posterior, cut)
    wide = console()
    whole = wide.measure(shown, options=wide.options.update(width=200)).maximum
    wide.width = max(wide.width, whole)  # names are there to be copied
    wide.print(shown)


def train(
    recipe: RecipeName,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; runs/NAME if not given.")
    ] = None,
    budget: Budget = "cpu",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run.")] = False,
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that train together; not with torchrun or SLURM."),
    ] = None,
    logger: Annotated[
        Literal["none", "csv", "tensorboard"], typer.Option(help="A logger beside metrics.csv.")
    ] = "none",
) -> None:
    """Train one recipe and evaluate it; everything lies in one run folder."""
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


def predict(
    run: Run,
    input: Annotated[Path, typer.Option(help="A CSV, NPZ or NPY file.")],
    output: Annotated[Path, typer.Option(help="The CSV file to write.")],
    samples: Samples = 100,
) -> None:
    """Write predictions with their uncertainty to a CSV file."""
    from leanbayes.lab.predictions import predict_file

    written = predict_file(run, input, output, samples=samples)
    console().print(f"Written to {written}", soft_wrap=True)


def sweep(
    recipe: RecipeName,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The folder; sweeps/NAME if not given.")] = None,
    budget: Budget = "cpu",
    trials: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
) -> None:
    """Choose among the recipe's choices on the validation set; several processes may help."""
    from leanbayes.lab.recipe_files import recipe_to_train
    from leanbayes.lab.sweep import sweep as search

    resolved = recipe_to_train(recipe, budget=budget, settings=_settings(settings))
    folder = out or Path("sweeps") / resolved.name
    chosen = search(resolved, folder, trials=trials)
    console().print_json(json.dumps(chosen, default=str), ensure_ascii=True)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one HTML page about runs, which works offline."""
    from leanbayes.lab.report import write_report
    from leanbayes.lab.runs import Run as Folder

    problems: list[str] = []
    written = write_report(runs, output, tell=problems.append)
    console().print(f"Written to {written}", soft_wrap=True)
    for problem in problems:
        console(stderr=True).print(problem, soft_wrap=True)
    if any(Folder(run).damage for run in runs):
        sys.exit(1)


def _settings(pairs: list[str] | None) -> dict[str, Any]:
    """``key=value`` pairs; values are read as YAML."""
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
                f"--set {pair!r} has a value that is no YAML; put quotes around it"
            ) from error
    return settings
