"""The studies as commands.

Annotations are read by typer, so they are ordinary objects here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from leanbayes.lab.runs import Run
from research.papers.matrix_normal.natural import NaturalSettings, compare_optimizers
from research.papers.matrix_normal.sparse.commands import add_sparse
from research.papers.matrix_normal.vae.commands import add_vae
from research.papers.rank1.commands import add_rank1
from research.papers.rank1.records import judge_records
from research.papers.variance.attacks import AttackSettings, attack_runs
from research.papers.variance.four_classes import (
    FourClasses,
    correlation_of,
    four_classes,
    kind_of,
    spreads_of,
)
from research.papers.variance.policies import keep_policy
from research.papers.variance.trained_blocks import FOLDER
from research.papers.variance.trained_file import write_study
from research.papers.variance.trained_study import study_run
from research.publishing.paper import ROOT

__all__ = ["add_studies"]

_TOY, _ATTACK, _NATURAL = FourClasses(), AttackSettings(), NaturalSettings()
_RESULTS = ROOT / "results" / "variance"


def add_studies(app: typer.Typer) -> None:
    """Give an application a command for every study."""
    toy_example = "python -m papers toy --out results/variance/studies/toy.json"
    attack_example = "python -m papers attack runs/attack-* --out attack.json"
    policies_example = "python -m papers policies runs/CartPole-v0-*.json"
    app.command(epilog=f"Example: {toy_example}")(toy)
    app.command(epilog=f"Example: {attack_example}")(attack)
    app.command(epilog=f"Example: {policies_example}")(policies)
    natural_example = "python -m papers natural --out results/matrix_normal/studies/natural.json"
    app.command(epilog="Example: python -m papers variance runs/mnist-lenet5-layer")(variance)
    app.command(epilog=f"Example: {natural_example}")(natural)
    add_vae(app)
    app.command(epilog="Example: python -m papers records runs/ehr/*")(records)
    add_rank1(app)
    add_sparse(app)


def toy(
    out: Annotated[Path, typer.Option(help="The JSON file; a stopped study goes on with it.")],
    seeds: Annotated[int, typer.Option(min=1, help="How many networks.")] = 8,
    iterations: Annotated[int, typer.Option(help="Steps of Adam.")] = _TOY.iterations,
    rate: Annotated[float, typer.Option(help="Its learning rate.")] = _TOY.rate,
    double_softmax: Annotated[
        bool, typer.Option("--double-softmax", help="Two of them, as in the released code.")
    ] = False,
) -> None:
    """Train four classes through two variance neurons, with several seeds (section 3.2)."""
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
    """Attack single networks and ensembles of finished runs, step by step (section 6.3)."""
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


def policies(
    files: Annotated[list[Path], typer.Argument(help="Files that leanbayes explore has written.")],
    out: Annotated[Path, typer.Option(help="The folder of results.")] = _RESULTS / "policies",
) -> None:
    """Keep returns of policies, averaged over blocks of episodes, for tables and pages."""
    for file in files:
        print(f"Written to {keep_policy(file, out)}")


def variance(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    samples: Annotated[int, typer.Option(min=1, help="Draws that an average is over.")] = 20,
    draws: Annotated[int, typer.Option(min=1, help="Single draws of the histogram.")] = 200,
    images: Annotated[int | None, typer.Option(min=1, help="Test images; all.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The JSON file; after/NAME.json in the paper's results.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Say what a trained variance network knows by its means, its noise and its scales."""
    file = out or _RESULTS / FOLDER / f"{Run(run).recipe.name}.json"
    if file.exists() and not overwrite:
        raise FileExistsError(
            f"{file} exists; replace it with --overwrite, or choose another --out"
        )
    study = study_run(run, samples=samples, draws=draws, images=images, progress=True)
    for title, score in study["accuracy"].items():
        print(f"{title:<8} {score['value']:.4f} ± {score['error']:.4f}")
    print(f"Written to {write_study(file, study)}")


def natural(
    out: Annotated[Path, typer.Option(help="The JSON file; a stopped study goes on with it.")],
    seeds: Annotated[int, typer.Option(min=1, help="How many, for every optimiser.")] = 1,
    epochs: Annotated[int, typer.Option(help="Of Adam.")] = _NATURAL.epochs,
    adam: Annotated[
        list[float] | None, typer.Option(help="A rate of Adam; may be repeated. 1e-3, 3e-3, 1e-2.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Of a natural step.")] = _NATURAL.natural,
    trust: Annotated[float, typer.Option(help="Bound on such a step.")] = _NATURAL.trust,
    natural_epochs: Annotated[
        list[int] | None, typer.Option(help="Of a natural run; may be repeated. 8.")
    ] = None,
    shorter: Annotated[
        list[int] | None, typer.Option(help="Epochs of further runs of Adam; may be repeated.")
    ] = None,
    whole_kl: Annotated[
        list[float] | None,
        typer.Option(help="A rate of Adam with the whole KL from the start; may be repeated."),
    ] = None,
    warmup: Annotated[
        float, typer.Option(help="Share of steps in which the KL comes in.")
    ] = _NATURAL.warmup,
    images: Annotated[int | None, typer.Option(help="Training images; all.")] = None,
    measured: Annotated[int, typer.Option(help="Images measured on.")] = _NATURAL.measured,
) -> None:
    """Train FC-300 on MNIST by Adam and by natural gradients: −ELBO over steps and seconds."""
    rates = tuple(adam) if adam else _NATURAL.adam
    runs = tuple(natural_epochs) if natural_epochs else _NATURAL.natural_epochs
    settings = NaturalSettings(
        epochs=epochs,
        adam=rates,
        natural=rate,
        trust=trust,
        natural_epochs=runs,
        shorter=tuple(shorter or ()),
        whole_kl=tuple(whole_kl or ()),
        warmup=warmup,
        images=images,
        measured=measured,
    )
    compare_optimizers(settings, out, seeds=seeds, progress=True, tell=_tell_optimizer)
    print(f"Written to {out}")


def _tell_optimizer(part: Mapping[str, Any]) -> None:
    print(
        f"{part['optimizer']}, seed {part['seed']}: −ELBO {part['negative_elbo'][-1]:.4f} after "
        f"{part['steps'][-1]} steps, {part['duration']:.0f} s"
    )


def records(
    runs: Annotated[list[Path], typer.Argument(help="Finished runs of rank1/ehr-lstm-*.")],
    out: Annotated[
        Path, typer.Option(help="The JSON file; a stopped study goes on with it.")
    ] = _RESULTS.parent / "rank1" / "studies" / "records.json",
) -> None:
    """Compare networks that read health records with the true risk of a generated cohort."""
    judge_records(runs, out, tell=_tell_record)
    print(f"Written to {out}")


def _tell_record(name: str, part: Mapping[str, Any]) -> None:
    metrics = part["metrics"]
    shown = ("nll", "excess", "auroc", "auc_pr", "ece")
    print(f"{name:<32}", *(f"{column} {metrics[column]['value']:.4f} " for column in shown))
