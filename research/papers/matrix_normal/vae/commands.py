"""Auto-encoders as commands.

Annotations are read by typer, so they are ordinary objects here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer

from leanbayes.lab.vae import LogLikelihood, VaeSettings, latent_shape, train_vae
from research.papers.matrix_normal.vae import judge
from research.papers.matrix_normal.vae.blocks import FOLDER
from research.publishing.paper import ROOT

__all__ = ["add_vae"]

_PUBLISHED = VaeSettings()
_RESULTS = ROOT / "results" / "matrix_normal" / FOLDER


def add_vae(app: typer.Typer) -> None:
    """Give an application the commands of auto-encoders."""
    example = "python -m papers vae --encoder mn --latent 20x2 --out runs/vae-40-mn"
    app.command(epilog=f"Example: {example}")(vae)
    app.command(epilog="Example: python -m papers judge-vae runs/vae-*")(judge_vae)


def vae(
    out: Annotated[Path, typer.Option(help="The folder; a stopped training goes on with it.")],
    encoder: Annotated[
        Literal["diag", "mn", "mv"],
        typer.Option(help="Independent, matrix-normal or fully correlated latents."),
    ] = "diag",
    latent: Annotated[
        str, typer.Option(help="The size of the latent vector; 20x2 for a matrix normal.")
    ] = "40",
    epochs: Annotated[int, typer.Option(help="How many at most.")] = _PUBLISHED.epochs,
    annealing: Annotated[
        int | None, typer.Option(help="Epochs in which the KL gains its weight; 0.3 of all.")
    ] = None,
    patience: Annotated[
        int, typer.Option(help="Epochs without a better bound that end it.")
    ] = _PUBLISHED.patience,
    rate: Annotated[float, typer.Option(help="Of Adam.")] = _PUBLISHED.rate,
    decay: Annotated[
        float, typer.Option(help="Share of the epochs, at the end, in which the rate falls to 0.")
    ] = _PUBLISHED.decay,
    seed: Annotated[int, typer.Option(help="Of weights, batches and noise.")] = _PUBLISHED.seed,
    threads: Annotated[int, typer.Option(min=1, help="Of torch.")] = 1,
    images: Annotated[int | None, typer.Option(help="Training images; all.")] = None,
) -> None:
    """Train an auto-encoder on static binarised MNIST (Table 3)."""
    torch.set_num_threads(threads)
    settings = VaeSettings(
        encoder=encoder,
        latent=latent_shape(latent),
        epochs=epochs,
        annealing=annealing,
        patience=patience,
        rate=rate,
        decay=decay,
        seed=seed,
        images=images,
    )
    result = train_vae(settings, out, tell=_tell_epoch)
    _tell_result(result)
    print(f"Written to {out}")


def _tell_epoch(row: Mapping[str, float]) -> None:
    print(
        f"epoch {row['epoch']:4.0f}: KL × {row['kl_weight']:.3f}, ELBO of training images "
        f"{row['train_bound']:.2f}, of validation images {row['validation_bound']:.2f}, "
        f"{row['seconds']:.1f} s",
        flush=True,
    )


def _tell_result(result: Mapping[str, Any]) -> None:
    bound = result["bound"]
    print(
        f"ELBO of test images {bound['bound']:.2f} (KL {bound['kl']:.2f}), of validation images "
        f"{result['validation_bound']:.2f}; best of {result['epochs']} epochs: "
        f"{result['best_epoch']}; {result['seconds']:.0f} s"
    )


def judge_vae(
    runs: Annotated[list[Path], typer.Argument(help="Folders that papers vae has trained.")],
    out: Annotated[
        Path, typer.Option(help="The folder of results; a stopped study goes on with its file.")
    ] = _RESULTS,
    samples: Annotated[int, typer.Option(min=2, help="Latent vectors of each image.")] = 5000,
    images: Annotated[int | None, typer.Option(min=1, help="Test images; all.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Of torch.")] = 1,
) -> None:
    """Judge trained auto-encoders: ELBO, log likelihood by importance sampling, pictures."""
    torch.set_num_threads(threads)
    for run in runs:
        print(run)
        judge.judge_vae(run, out, samples=samples, images=images, tell=_tell_judged)
    print(f"Written to {out}")


def _tell_judged(so_far: LogLikelihood) -> None:
    print(
        f"{so_far.images:6d} images: log likelihood {so_far.score.value:.3f} ± "
        f"{so_far.score.error:.3f} (sampling {so_far.sampling_error:.4f}), ELBO "
        f"{so_far.bound.value:.3f}, {so_far.effective:.0f} effective samples",
        flush=True,
    )
