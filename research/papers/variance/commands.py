"""Commands of the variance paper."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from research.options import (
    Images,
    Out,
    Overwrite,
    RunFolder,
    RunFolders,
    SeedFile,
    Seeds,
    seed_file,
    with_settings,
)
from research.papers.variance.attacks import AttackSettings, attack_runs
from research.papers.variance.explore import add_explore
from research.papers.variance.four_classes import FourClasses, four_classes, tell_seed
from research.papers.variance.policies import keep_policy
from research.papers.variance.trained_blocks import FOLDER
from research.papers.variance.trained_study import study_run
from research.publishing.paper import RESULTS
from research.publishing.study_file import show, write_study

app = typer.Typer()
add_explore(app)
_RESULTS = RESULTS / "variance"


@app.command(epilog="Example: python -m research papers toy --seeds 8")
@with_settings(FourClasses)
def toy(
    settings: FourClasses, out: Out = _RESULTS / "studies" / "toy.json", seeds: Seeds = 8
) -> None:
    """Train four classes through two variance neurons, with several seeds (section 3.2)."""
    torch.set_num_threads(1)  # matrices this small are slower on two
    four_classes(settings, out, seeds=seeds, progress=True, tell=tell_seed)
    print(f"Written to {out}")


@app.command(epilog="Example: python -m research papers attack runs/attack-* --out attack.json")
@with_settings(AttackSettings)
def attack(settings: AttackSettings, runs: RunFolders, out: Out) -> None:
    """Attack runs of …-deterministic, …-dropout and …-variance recipes (section 6.3)."""
    attack_runs(runs, settings, out, progress=True, tell=show("success", "error", "seconds"))
    print(f"Written to {out}")


@app.command(epilog="Example: python -m research papers policies runs/CartPole-v0-*.json")
def policies(
    files: Annotated[list[Path], typer.Argument(help="Files that explore has written.")],
    out: Annotated[Path, typer.Option(help="Folder of results.")] = _RESULTS / "policies",
) -> None:
    """Keep returns of policies, averaged over blocks of episodes, for tables and pages."""
    for file in files:
        print(f"Written to {keep_policy(file, out)}")


@app.command(epilog="Example: python -m research papers variance runs/mnist-lenet5-layer")
def variance(
    run: RunFolder,
    samples: Annotated[int, typer.Option(min=1, help="Number of samples in an average.")] = 20,
    draws: Annotated[int, typer.Option(min=1, help="Single draws of the histogram.")] = 200,
    images: Images = None,
    out: SeedFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Measure what a trained variance network has in its means, its noise and its scales."""
    file = seed_file(run, _RESULTS / FOLDER, out, overwrite)
    study = study_run(run, samples=samples, draws=draws, images=images, progress=True)
    for title, score in study["accuracy"].items():
        print(f"{title:<8} {score['value']:.4f} ± {score['error']:.4f}")
    print(f"Written to {write_study(file, study)}")
