"""``python -m studies``: our own studies and their pages, from a checkout.

Annotations are read by typer, so they are ordinary objects here.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from leanbayes.errors import choose
from leanbayes.lab.console import one_line
from leanbayes.lab.files import read_object
from research.publishing.pages import refresh
from research.publishing.paper import DOCS, ROOT
from research.studies.kl_weight.page import write as write_kl_weight
from research.studies.kl_weight.study import TASKS, everything
from research.studies.overview.page import write as write_overview
from research.studies.overview.study import Settings, study_costs, study_methods
from research.studies.starts.page import write as write_starts
from research.studies.starts.study import Settings as StartSettings
from research.studies.starts.study import study_starts
from research.studies.uci.published import SETS
from research.studies.uci.study import Row, fit_splits
from research.studies.uci.tables import makers

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="What defaults and choices are worth, on real data.",
)
OVERVIEW = Settings()
_RESULTS = ROOT / "results"
_UCI, _KL_WEIGHT = (_RESULTS / name for name in ("uci", "kl_weight"))
_OVERVIEW, _STARTS = (_RESULTS / f"{name}.json" for name in ("overview", "starts"))


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


@app.command(epilog="Example: python -m studies kl-weight --data concrete")
def kl_weight(
    data: Annotated[
        list[str] | None,
        typer.Option(help="concrete, mnist or fashion-mnist; may be repeated. All."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder; a stopped study goes on.")] = _KL_WEIGHT,
) -> None:
    """Train with eight weights of the KL: NLL, calibration, coverage and foreign data."""
    torch.set_num_threads(1)
    tasks = {name: choose("data set", name, TASKS)[1] for name in data or TASKS}
    everything(out, tasks)


@app.command(epilog="Example: python -m studies lora --seeds 3")
def lora(
    out: Annotated[
        Path, typer.Option(help="The JSON file; a stopped study goes on with it.")
    ] = _RESULTS / "lora" / "minilm.json",
    states: Annotated[Path, typer.Option(help="The folder of trained adapters.")] = Path(
        "runs/lora"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="How many, for every row.")] = 3,
    train: Annotated[int, typer.Option(min=1, help="Reviews to learn from.")] = 2000,
    test: Annotated[int, typer.Option(min=2, help="Reviews to judge by.")] = 800,
    foreign: Annotated[int, typer.Option(min=1, help="Foreign texts of each kind.")] = 200,
    epochs: Annotated[int, typer.Option(min=1, help="Of training.")] = 2,
    samples: Annotated[int, typer.Option(min=2, help="Predictive draws.")] = 8,
) -> None:
    """Fine-tune MiniLM on IMDB by plain and Bayesian LoRA: a table, and docs/lora.md from it."""
    from research.studies.lora.page import (  # transformers takes seconds to import
        RESULTS,
        write_page,
    )
    from research.studies.lora.study import LoraSettings, study_lora
    from research.studies.lora.texts import Sizes

    torch.set_num_threads(1)
    settings = LoraSettings(Sizes(train, test, foreign), epochs=epochs, samples=samples)
    study_lora(settings, out, states=states, seeds=seeds, progress=True, tell=_tell_row)
    print(f"Written to {out}")
    if out.resolve() == RESULTS:
        print(f"Written to {write_page()}")


def _tell_row(key: str, part: Mapping[str, Any]) -> None:
    print(
        f"{key}: accuracy {part['accuracy']['value']:.3f}, NLL {part['nll']['value']:.4f}, ECE "
        f"{part['ece']['value']:.4f}; {part['seconds']:.0f} + {part['predict_seconds']:.0f} s"
    )


@app.command(epilog="Example: python -m studies overview --seeds 3")
def overview(
    seeds: Annotated[int, typer.Option(min=1, help="How many, for every method.")] = 3,
    images: Annotated[int, typer.Option(min=1, help="Training images.")] = OVERVIEW.images,
    epochs: Annotated[int, typer.Option(min=1, help="Of training.")] = OVERVIEW.epochs,
    only_costs: Annotated[
        bool, typer.Option("--only-costs", help="Measure steps alone, on a quiet machine.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The JSON file; a stopped study goes on.")] = _OVERVIEW,
) -> None:
    """Train one network in five ways on Fashion-MNIST: what uncertainty buys and costs."""
    settings = Settings(images=images, epochs=epochs)
    if not only_costs:
        study_methods(settings, out, seeds=seeds, tell=_tell_method)
    study_costs(settings, out)
    print(f"Written to {out}")


def _tell_method(key: str, part: Mapping[str, Any]) -> None:
    print(
        f"{key}: accuracy {part['accuracy']:.4f}, NLL {part['nll']:.4f}, ECE {part['ece']:.4f}, "
        f"AUROC {part['auroc']:.4f}; {part['duration']:.0f} s",
        flush=True,
    )


@app.command(epilog="Example: python -m studies starts --seeds 5")
def starts(
    seeds: Annotated[int, typer.Option(min=1, help="How many, for every network and way.")] = 5,
    out: Annotated[Path, typer.Option(help="The JSON file; a stopped study goes on.")] = _STARTS,
) -> None:
    """Train three networks from several first standard deviations: what is fast, what is safe."""
    torch.set_num_threads(1)
    study_starts(StartSettings(), out, seeds=seeds, tell=_tell_start)
    print(f"Written to {out}")


def _tell_start(key: str, part: Mapping[str, Any]) -> None:
    print(
        f"{key}: −ELBO {part['negative_elbo'][-1]:.3f}, NLL {part['nll']:.3f}, accuracy "
        f"{part['accuracy']:.3f}; {part['duration']:.0f} s",
        flush=True,
    )


@app.command(epilog="Example: python -m studies page")
def page() -> None:
    """Make the pages of all studies anew, from the files of results."""
    if _UCI.is_dir():
        print(f"Written to {refresh(DOCS / 'uci.md', makers(_UCI))}")
    if _OVERVIEW.exists():
        write_overview(_OVERVIEW, ROOT / "README.md", DOCS / "overview.png")
        print("Written to README.md")
    if _STARTS.exists():
        study = read_object(
            _STARTS, {"settings", "parts"}, "a study", "run python -m studies starts"
        )
        print(f"Written to {write_starts(study, DOCS)}")
    if _KL_WEIGHT.is_dir():
        print(f"Written to {write_kl_weight(_KL_WEIGHT, DOCS)}")
    if (_RESULTS / "lora" / "minilm.json").exists():
        from research.studies.lora.page import write_page  # peft takes seconds to import

        print(f"Written to {write_page()}")


def main() -> None:
    """Run the command; what can be mended comes as one sentence instead of a traceback."""
    try:
        app()
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"studies: {one_line(error)}")


if __name__ == "__main__":
    main()
