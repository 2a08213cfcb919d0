"""The studies of the rank-1 paper as commands.

Annotations are read by typer, so they are ordinary objects here.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from leanbayes.lab.corruptions import PUBLISHED
from leanbayes.lab.recipe import Budget
from leanbayes.lab.runs import Run
from research.papers.rank1.costs import CostSettings, measure_costs
from research.papers.rank1.seed_means import FOLDER
from research.papers.rank1.study import Rank1Settings, study_rank1
from research.papers.rank1.theorem import TheoremSettings, theorem
from research.papers.rank1.trials import trials
from research.publishing.paper import ROOT

__all__ = ["add_rank1"]

_RESULTS = ROOT / "results" / "rank1"
_SETTINGS, _THEOREM = Rank1Settings(), TheoremSettings()
_RIVALS = (
    "deterministic",
    "mc-dropout",
    "mean-field",
    "batchensemble",
    "gaussian",
    "cauchy",
    "low-rank",
    "ensemble",
)
RECIPES = tuple(f"rank1/fashion-mnist-resnet-{name}" for name in _RIVALS)


def add_rank1(app: typer.Typer) -> None:
    """Give an application these commands."""
    app.command(epilog="Example: python -m papers rank1 runs/rank1/* --few 300")(rank1)
    app.command(epilog="Example: python -m papers rank1-costs")(rank1_costs)
    app.command(epilog="Example: python -m papers rank1-trials runs/trials/*")(rank1_trials)
    app.command("theorem", epilog="Example: python -m papers theorem")(theorem_1)


def rank1(
    runs: Annotated[list[Path], typer.Argument(help="Finished run folders of images.")],
    images: Annotated[int | None, typer.Option(min=1, help="Clean test images; all.")] = None,
    corrupted: Annotated[
        int, typer.Option(min=1, help="Images that are damaged in every way.")
    ] = _SETTINGS.corrupted,
    few: Annotated[
        int, typer.Option(min=0, help="Images damaged for every number of samples; none.")
    ] = _SETTINGS.few,
    samples: Annotated[
        list[int] | None, typer.Option(min=1, help="Samples to compare; 1, 4 and 25.")
    ] = None,
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", help="A corruption; may be repeated. All 15.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of results.")] = _RESULTS / FOLDER,
) -> None:
    """Study trained runs on clean, damaged and foreign images; a stopped study goes on."""
    settings = Rank1Settings(
        images,
        corrupted,
        few,
        tuple(samples) if samples else _SETTINGS.samples,
        tuple(kinds) if kinds else PUBLISHED,
    )
    for run in runs:
        recipe = Run(run).recipe
        file = out / f"{recipe.name}-seed{recipe.seed}.json"
        study_rank1(run, settings, file, tell=_tell)
        print(f"Written to {file}")


def _tell(name: str, part: Mapping[str, Any]) -> None:
    if "severities" in part:
        counts = part["severities"]["1"]
        means = {
            count: fmean(by[count]["nll"]["value"] for by in part["severities"].values())
            for count in counts
        }
        numbers = ", ".join(f"NLL {mean:.4f} by {count}" for count, mean in means.items())
    else:
        numbers = "finished"
    print(f"{name:<28} {numbers}; {part['seconds']:.0f} s", flush=True)


def rank1_costs(
    recipes: Annotated[
        list[str] | None, typer.Argument(help="Recipes; the first is what others are relative to.")
    ] = None,
    budget: Annotated[Budget, typer.Option(help="Settings of the recipes.")] = "paper",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every network.")] = 15,
    out: Annotated[Path, typer.Option(help="The JSON file.")] = _RESULTS / "studies" / "costs.json",
) -> None:
    """Measure what steps and predictions cost, in CPU time of one thread, in turns."""
    settings = CostSettings(tuple(recipes) if recipes else RECIPES, budget, rounds)
    for name, cost in measure_costs(settings, out)["costs"].items():
        step, prediction = (cost[kind]["ratio"] for kind in ("step", "prediction"))
        print(f"{name:<36} step {step:.2f}, prediction {prediction:.2f}")
    print(f"Written to {out}")


def rank1_trials(
    runs: Annotated[list[Path], typer.Argument(help="Finished run folders.")],
    out: Annotated[Path, typer.Option(help="The JSON file.")] = _RESULTS
    / "studies"
    / "trials.json",
) -> None:
    """Collect what runs came to on their validation images, by which settings are chosen."""
    for trial in trials(runs, out)["trials"]:
        rate = "no rate" if trial["rate"] is None else f"rate {trial['rate']:g}"
        print(f"{trial['name']:<16} {rate:<12} NLL {trial['nll']:.4f}")
    print(f"Written to {out}")


def theorem_1(
    draws: Annotated[int, typer.Option(min=2, help="Of the noise.")] = _THEOREM.draws,
    width: Annotated[int, typer.Option(min=1, help="Of the network.")] = _THEOREM.width,
    depth: Annotated[int, typer.Option(min=1, help="Of the network.")] = _THEOREM.depth,
    seed: Annotated[int, typer.Option(help="Of weights and noise.")] = _THEOREM.seed,
    out: Annotated[
        Path, typer.Option(help="The JSON file; a stopped study goes on with it.")
    ] = _RESULTS / "studies" / "theorem.json",
) -> None:
    """Compare noise in s with noise in the weights, layer by layer (appendix A)."""
    settings = TheoremSettings(width=width, depth=depth, draws=draws, seed=seed)
    theorem(settings, out, tell=lambda name: print(f"{name} finished", flush=True))
    print(f"Written to {out}")
