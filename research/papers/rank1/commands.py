"""Commands of the rank-1 paper."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from leanbayes.lab.recipe import Budget
from leanbayes.lab.runs import Run
from research.options import Out, OutFolder, RunFolders, with_settings
from research.papers.rank1.costs import CostSettings, measure_costs
from research.papers.rank1.records import judge_records
from research.papers.rank1.seed_means import FOLDER
from research.papers.rank1.study import Rank1Settings, study_rank1
from research.papers.rank1.theorem import TheoremSettings, theorem
from research.papers.rank1.trials import trials
from research.publishing.paper import RESULTS
from research.publishing.study_file import show

app = typer.Typer()
_RESULTS = RESULTS / "rank1"
_RIVALS = (
    *("deterministic", "mc-dropout", "mean-field", "batchensemble"),
    *("gaussian", "cauchy", "low-rank", "ensemble"),
)
RECIPES = tuple(f"rank1/fashion-mnist-resnet-{name}" for name in _RIVALS)


@app.command(epilog="Example: python -m research papers rank1 runs/rank1/* --few 300")
@with_settings(Rank1Settings)
def rank1(settings: Rank1Settings, runs: RunFolders, out: OutFolder = _RESULTS / FOLDER) -> None:
    """Study trained runs on clean, damaged and out-of-distribution images."""
    for run in runs:
        recipe = Run(run).recipe
        file = out / f"{recipe.name}-seed{recipe.seed}.json"
        study_rank1(run, settings, file, tell=_tell)
        print(f"Written to {file}")


def _tell(name: str, part: Mapping[str, Any]) -> None:
    numbers = "finished"
    if "severities" in part:
        means = {
            count: fmean(by[count]["nll"]["value"] for by in part["severities"].values())
            for count in part["severities"]["1"]
        }
        numbers = ", ".join(f"NLL {mean:.4f} by {count}" for count, mean in means.items())
    print(f"{name:<28} {numbers}; {part['seconds']:.0f} s", flush=True)


@app.command(epilog="Example: python -m research papers rank1-costs")
def rank1_costs(
    recipes: Annotated[
        list[str] | None, typer.Argument(help="Recipes; costs are relative to the first.")
    ] = None,
    budget: Annotated[Budget, typer.Option(help="Settings of the recipes.")] = "paper",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every network.")] = 15,
    out: Annotated[Path, typer.Option(help="JSON file.")] = _RESULTS / "studies" / "costs.json",
) -> None:
    """Measure what steps and predictions cost, in CPU time of one thread, in turns."""
    settings = CostSettings(tuple(recipes) if recipes else RECIPES, budget, rounds)
    for name, cost in measure_costs(settings, out)["costs"].items():
        step, prediction = (cost[kind]["ratio"] for kind in ("step", "prediction"))
        print(f"{name:<36} step {step:.2f}, prediction {prediction:.2f}")
    print(f"Written to {out}")


@app.command(epilog="Example: python -m research papers rank1-trials runs/trials/*")
def rank1_trials(
    runs: RunFolders,
    out: Annotated[Path, typer.Option(help="JSON file.")] = _RESULTS / "studies" / "trials.json",
) -> None:
    """Collect what runs came to on their validation images, by which settings are chosen."""
    for trial in trials(runs, out)["trials"]:
        rate = "no rate" if trial["rate"] is None else f"rate {trial['rate']:g}"
        print(f"{trial['name']:<16} {rate:<12} NLL {trial['nll']:.4f}")
    print(f"Written to {out}")


@app.command("theorem", epilog="Example: python -m research papers theorem")
@with_settings(TheoremSettings)
def theorem_1(settings: TheoremSettings, out: Out = _RESULTS / "studies" / "theorem.json") -> None:
    """Compare noise in s with noise in the weights, layer by layer (appendix A)."""
    theorem(settings, out, tell=show("seconds"))
    print(f"Written to {out}")


@app.command(epilog="Example: python -m research papers records runs/ehr/*")
def records(runs: RunFolders, out: Out = _RESULTS / "studies" / "records.json") -> None:
    """Compare networks that read health records with the true risk of a generated cohort."""
    tell = show("nll", "excess", "auroc", "auc_pr", "ece")
    judge_records(runs, out, tell=lambda name, part: tell(name, part["metrics"]))
    print(f"Written to {out}")
