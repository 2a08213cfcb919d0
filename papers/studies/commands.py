"""The studies as commands.

Annotations are read by typer, so they are ordinary objects here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from papers.studies.attacks import AttackSettings, attack_runs
from papers.studies.four_classes import (
    FourClasses,
    correlation_of,
    four_classes,
    kind_of,
    spreads_of,
)

__all__ = ["add_studies"]

_TOY, _ATTACK = FourClasses(), AttackSettings()


def add_studies(app: typer.Typer) -> None:
    """Give an application a command for every study."""
    toy_example = "python -m papers toy --out results/variance/studies/toy.json"
    attack_example = "python -m papers attack runs/attack-* --out attack.json"
    app.command(epilog=f"Example: {toy_example}")(toy)
    app.command(epilog=f"Example: {attack_example}")(attack)


def toy(
    out: Annotated[Path, typer.Option(help="The JSON file; a stopped study goes on with it.")],
    seeds: Annotated[int, typer.Option(min=1, help="How many networks.")] = 8,
    iterations: Annotated[int, typer.Option(help="Steps of Adam.")] = _TOY.iterations,
    rate: Annotated[float, typer.Option(help="Its learning rate.")] = _TOY.rate,
    double_softmax: Annotated[
        bool, typer.Option("--double-softmax", help="Two of them, as in the released code.")
    ] = False,
) -> None:
    """Train four classes through two variance neurons, with several seeds [variance, 3.2]."""
    torch.set_num_threads(1)  # matrices this small are slower on two
    settings = FourClasses(iterations=iterations, rate=rate, double_softmax=double_softmax)
    four_classes(settings, out, seeds=seeds, progress=True, tell=_tell_seed)
    print(f"Written to {out}")


def _tell_seed(part: Mapping[str, Any]) -> None:
    spreads = spreads_of(part)
    shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in part["accuracy"].items())
    print(
        f"seed {part['seed']}: {kind_of(spreads)} (correlation {correlation_of(spreads):.2f}); "
        f"{shares}; {part['seconds']:.0f} s"
    )


def attack(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Finished runs of …-deterministic, …-dropout and …-variance."),
    ],
    out: Annotated[Path, typer.Option(help="The JSON file; a stopped study goes on with it.")],
    images: Annotated[int, typer.Option(help="How many test images.")] = _ATTACK.images,
    iterations: Annotated[int, typer.Option(help="Steps of the attack.")] = _ATTACK.iterations,
    step: Annotated[float, typer.Option(help="In units of pixels, 0 to 255.")] = _ATTACK.step,
    draws: Annotated[int, typer.Option(help="Of a random network.")] = _ATTACK.draws,
    seed: Annotated[int, typer.Option(help="Of images, targets and draws.")] = _ATTACK.seed,
) -> None:
    """Attack single networks and ensembles of finished runs, step by step [variance, 6.3]."""
    settings = AttackSettings(images, iterations, step, draws, seed)
    attack_runs(runs, settings, out, progress=True, tell=_tell_attack)
    print(f"Written to {out}")


def _tell_attack(network: str, gradient: str, part: Mapping[str, Any]) -> None:
    share, error = 100 * part["success"][-1], 100 * part["error"][-1]
    steps = len(part["success"]) - 1
    print(
        f"{network}, gradient {gradient.replace('_', ' ')}: {share:.1f} ± {error:.1f} % after "
        f"{steps}; {part['seconds']:.0f} s"
    )
