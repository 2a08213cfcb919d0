"""Commands of studies that belong to no paper."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from leanbayes.errors import choose
from leanbayes.lab.files import read_object
from research.options import Out, OutFolder, Seeds, with_settings
from research.publishing.pages import refresh
from research.publishing.paper import DOCS, RESULTS, ROOT
from research.publishing.study_file import read_study, show
from research.studies.kl_weight.page import write as write_kl_weight
from research.studies.kl_weight.study import TASKS, everything
from research.studies.leaderboard.page import makers as leaderboard_makers
from research.studies.leaderboard.study import study_leaderboard
from research.studies.leaderboard.tasks import TASKS as LEADERBOARD_TASKS
from research.studies.leaderboard.variants import study_variants
from research.studies.one_pass.page import write as write_one_pass
from research.studies.one_pass.study import Settings as OnePassSettings
from research.studies.one_pass.study import study_one_pass
from research.studies.overview.page import write as write_overview
from research.studies.overview.study import Settings, study_costs, study_methods
from research.studies.train_well import makers as train_well_makers
from research.studies.uci.published import SETS
from research.studies.uci.study import Row, fit_splits
from research.studies.uci.tables import makers

app = typer.Typer(no_args_is_help=True, help="Value of defaults and choices, on real data.")
_UCI, _KL_WEIGHT = RESULTS / "uci", RESULTS / "kl_weight"
_OVERVIEW = RESULTS / "overview.json"
_LEADERBOARD = RESULTS / "leaderboard"
_VARIANTS = RESULTS / "variants.json"
_LORA = RESULTS / "lora" / "minilm.json"
_ONE_PASS, _ONE_PASS_COSTS = RESULTS / "one_pass.json", RESULTS / "bench" / "one_pass.json"
_SEARCH = RESULTS / "defaults.json"


@app.command(epilog="Example: python -m research studies uci --data concrete --posterior k-tied")
def uci(
    data: Annotated[
        list[str] | None, typer.Option(help="Data set; may be repeated. All seven.")
    ] = None,
    posterior: Annotated[
        list[str] | None, typer.Option(help="May be repeated. k-tied, mean-field, matrix-normal.")
    ] = None,
    noise: Annotated[str, typer.Option(help="learned or predicted.")] = "learned",
    splits: Annotated[int | None, typer.Option(min=1, help="Number of splits; all.")] = None,
    out: OutFolder = _UCI,
) -> None:
    """Fit estimators with their defaults to the UCI regression sets, split by split."""
    torch.set_num_threads(1)  # networks this small are slower on two
    for name in data or SETS:
        for each in posterior or ("k-tied", "mean-field", "matrix-normal"):
            row = Row(name, each, noise)
            count = min(splits or row.facts.splits, row.facts.splits)
            tell = show("log_likelihood", "rmse", "coverage", "duration")
            fit_splits(row, out, range(count), tell=tell)
            print(f"Written to {out / row.file}")


@app.command(epilog="Example: python -m research studies kl-weight --data concrete")
def kl_weight(
    data: Annotated[
        list[str] | None,
        typer.Option(help="concrete, mnist or fashion-mnist; may be repeated. All."),
    ] = None,
    out: OutFolder = _KL_WEIGHT,
) -> None:
    """Train with eight weights of the KL: NLL, calibration, coverage and OOD detection."""
    torch.set_num_threads(1)
    tasks = {name: choose("data set", name, TASKS)[1] for name in data or TASKS}
    everything(out, tasks)


@app.command(epilog="Example: python -m research studies lora --seeds 3")
def lora(
    out: Out = _LORA,
    states: Annotated[Path, typer.Option(help="Folder of trained adapters.")] = Path("runs/lora"),
    seeds: Seeds = 3,
    train: Annotated[int, typer.Option(min=1, help="Number of training reviews.")] = 2000,
    test: Annotated[int, typer.Option(min=2, help="Number of test reviews.")] = 800,
    foreign: Annotated[int, typer.Option(min=1, help="Number of OOD texts of each kind.")] = 200,
    epochs: Annotated[int, typer.Option(min=1, help="Number of epochs.")] = 2,
    samples: Annotated[int, typer.Option(min=2, help="Number of predictive samples.")] = 8,
) -> None:
    """Fine-tune MiniLM on IMDB by plain and Bayesian LoRA: a table, and docs/lora.md from it."""
    from research.studies.lora.page import write_page  # transformers takes seconds to import
    from research.studies.lora.study import LoraSettings, study_lora
    from research.studies.lora.texts import Sizes

    torch.set_num_threads(1)
    settings = LoraSettings(Sizes(train, test, foreign), epochs=epochs, samples=samples)
    tell = show("accuracy", "nll", "ece", "seconds", "predict_seconds")
    study_lora(settings, out, states=states, seeds=seeds, progress=True, tell=tell)
    print(f"Written to {out}")
    if out.resolve() == _LORA:
        print(f"Written to {write_page()}")


@app.command(epilog="Example: python -m research studies overview --seeds 3")
@with_settings(Settings)
def overview(
    settings: Settings,
    seeds: Seeds = 3,
    only_costs: Annotated[
        bool, typer.Option("--only-costs", help="Measure steps alone, on a quiet machine.")
    ] = False,
    out: Out = _OVERVIEW,
) -> None:
    """Train one network in five ways on Fashion-MNIST: what uncertainty gains and costs."""
    if not only_costs:
        tell = show("accuracy", "nll", "ece", "auroc", "duration")
        study_methods(settings, out, seeds=seeds, tell=tell)
    study_costs(settings, out)
    print(f"Written to {out}")


@app.command(epilog="Example: python -m research studies leaderboard --tasks mlp,lstm --seeds 0,1")
def leaderboard(
    tasks: Annotated[str, typer.Option(help="Names of tasks, separated by commas. All.")] = "",
    methods: Annotated[
        str, typer.Option(help="Names of methods, separated by semicolons. All installed.")
    ] = "",
    seeds: Annotated[str, typer.Option(help="Seeds, for UCI sets splits.")] = "0,1,2",
    states: Annotated[Path, typer.Option(help="Folder of networks that methods share.")] = Path(
        "runs/leaderboard"
    ),
    only_costs: Annotated[
        bool, typer.Option("--only-costs", help="Measure steps alone, on a quiet machine.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every measured step.")] = 20,
    out: OutFolder = _LEADERBOARD,
) -> None:
    """Train every method on every task: docs/leaderboard.md."""
    if only_costs:
        from research.studies.leaderboard.costs import measure_costs

        print(f"Written to {measure_costs(out, rounds=rounds, tell=print)}")
        return
    torch.set_num_threads(1)
    names = [name for name in tasks.split(",") if name]
    chosen = [name.strip() for name in methods.split(";") if name.strip()]
    numbers = [int(seed) for seed in seeds.split(",")]
    study_leaderboard(out, states, seeds=numbers, tasks=names, methods=chosen)
    print(f"Written to {out}")


@app.command(epilog="Example: python -m research studies variants --tasks uci-energy,resnet")
def variants(
    tasks: Annotated[str, typer.Option(help="Tasks of the leaderboard, separated by commas.")],
    methods: Annotated[str, typer.Option(help="Variants, separated by semicolons. All.")] = "",
    seeds: Seeds = 2,
    states: Annotated[Path, typer.Option(help="Folder of plain networks.")] = Path("runs/variants"),
    out: Out = _VARIANTS,
) -> None:
    """Train variants of the recommended recipe: NLL on validation rows."""
    torch.set_num_threads(1)
    names = tasks.split(",")
    for name in names:
        choose("task", name, LEADERBOARD_TASKS)
    chosen = [name.strip() for name in methods.split(";") if name.strip()]
    study_variants(out, states, tasks=names, methods=chosen, seeds=seeds, tell=show("duration"))
    print(f"Written to {out}")


@app.command(epilog="Example: python -m research studies one-pass --seeds 3")
@with_settings(OnePassSettings)
def one_pass(
    settings: OnePassSettings,
    seeds: Seeds = 3,
    states: Annotated[Path, typer.Option(help="Folder of trained networks.")] = Path(
        "runs/one_pass"
    ),
    out: Out = _ONE_PASS,
) -> None:
    """Predict with trained networks by 200 samples and by one pass: NLL, ECE and AUROC."""
    torch.set_num_threads(1)
    study_one_pass(settings, out, seeds=seeds, states=states, tell=show("nll", "ece", "auroc"))
    print(f"Written to {out}")


def write_pages() -> None:
    """Update the pages of all studies from the files of results."""
    if _UCI.is_dir():
        print(f"Written to {refresh(DOCS / 'uci.md', makers(_UCI))}")
    if _SEARCH.exists():
        print(f"Written to {refresh(DOCS / 'train_well.md', train_well_makers(RESULTS))}")
    if _LEADERBOARD.is_dir():
        print(f"Written to {refresh(DOCS / 'leaderboard.md', leaderboard_makers(_LEADERBOARD))}")
    if _OVERVIEW.exists():
        print(f"Written to {write_overview(_OVERVIEW, ROOT / 'README.md', DOCS / 'overview.png')}")
    if _KL_WEIGHT.is_dir():
        print(f"Written to {write_kl_weight(_KL_WEIGHT, DOCS)}")
    if _ONE_PASS.exists():
        costs = (
            read_object(_ONE_PASS_COSTS, {"branches"}, "a benchmark", "run it")
            if _ONE_PASS_COSTS.exists()
            else None
        )
        study = read_study(_ONE_PASS, "studies one-pass")
        print(f"Written to {write_one_pass(study, costs, DOCS)}")
    if _LORA.exists():
        from research.studies.lora.page import write_page  # peft takes seconds to import

        print(f"Written to {write_page()}")
