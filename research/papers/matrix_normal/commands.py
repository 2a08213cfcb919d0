"""Commands of the matrix-normal paper."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from research.options import (
    Images,
    Out,
    OutFolder,
    Overwrite,
    RunFolder,
    RunFolders,
    SeedFile,
    Seeds,
    Threads,
    seed_file,
    with_settings,
)
from research.papers.matrix_normal.natural import NaturalSettings, compare_optimizers
from research.papers.matrix_normal.sparse.compaction import study_compaction
from research.papers.matrix_normal.sparse.files import COMPACTION, SPARSITY
from research.papers.matrix_normal.sparse.study import study_sparsity
from research.papers.matrix_normal.vae import judge
from research.papers.matrix_normal.vae.blocks import FOLDER
from research.papers.matrix_normal.vae.latent_use import FILE, study_latent_use
from research.papers.matrix_normal.vae.likelihood import LogLikelihood
from research.papers.matrix_normal.vae.settings import VaeSettings, latent_shape
from research.papers.matrix_normal.vae.train import train_vae
from research.publishing.paper import RESULTS
from research.publishing.study_file import show, write_study

app = typer.Typer()
_RESULTS = RESULTS / "matrix_normal"
Samples = Annotated[int, typer.Option(min=1, help="Number of samples in an average.")]


@app.command(epilog="Example: python -m research papers natural --seeds 1")
@with_settings(NaturalSettings)
def natural(
    settings: NaturalSettings,
    out: Out = _RESULTS / "studies" / "natural.json",
    seeds: Seeds = 1,
) -> None:
    """Train FC-300 on MNIST by Adam and by natural gradients: −ELBO over steps and seconds."""
    tell = show("negative_elbo", "steps", "duration")
    compare_optimizers(settings, out, seeds=seeds, progress=True, tell=tell)
    print(f"Written to {out}")


@app.command(epilog="Example: python -m research papers sparsity runs/mnist-mlp-mn")
def sparsity(
    run: RunFolder,
    samples: Samples = 5,
    images: Images = None,
    out: SeedFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Set to zero what has no relevance, threshold by threshold, and judge what is left."""
    file = seed_file(run, _RESULTS / SPARSITY, out, overwrite)
    study = study_sparsity(run, samples=samples, images=images, progress=True)
    for point in study["sweep"]:
        left, of = point["weights"]
        print(f"log α < {point['log_alpha']:>2g}: {100 * left / of:6.2f}% left{_accuracy(point)}")
    print(f"Written to {write_study(file, study)}")


@app.command(epilog="Example: python -m research papers compaction runs/fashion-mnist-mlp-group-mn")
def compaction(
    run: RunFolder,
    samples: Samples = 20,
    images: Images = None,
    out: SeedFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Remove the rows and columns without relevance: multiply-adds and accuracy, and what stays."""
    file = seed_file(run, _RESULTS / COMPACTION, out, overwrite)
    study = study_compaction(run, samples=samples, images=images, progress=True)
    for point in study["sweep"]:
        for kind in study["whole"]:
            sizes = " → ".join(map(str, point[kind]["multiply_adds"])) or "kept whole"
            accuracy = _accuracy(point[kind])
            print(f"log α < {point['log_alpha']:g}, {kind}: multiply-adds {sizes}{accuracy}")
    print(f"Written to {write_study(file, study)}")


def _accuracy(found: dict[str, Any]) -> str:
    if "accuracy" not in found:
        return ""
    return f", accuracy {100 * found['accuracy']['value']:.2f}%"


@app.command(
    epilog="Example: python -m research papers vae --encoder mn --latent 20x2 --out runs/vae-40-mn"
)
@with_settings(VaeSettings, parse={"latent": (latent_shape, "40")})
def vae(
    settings: VaeSettings,
    out: Annotated[Path, typer.Option(help="Folder; a stopped training resumes from it.")],
    threads: Threads = 1,
) -> None:
    """Train an auto-encoder on static binarized MNIST (Table 3)."""
    torch.set_num_threads(threads)
    result = train_vae(settings, out, tell=_tell_epoch)
    bound = result["bound"]
    print(
        f"ELBO of test images {bound['bound']:.2f} (KL {bound['kl']:.2f}), of validation images "
        f"{result['validation_bound']:.2f}; best of {result['epochs']} epochs: "
        f"{result['best_epoch']}; {result['seconds']:.0f} s\nWritten to {out}"
    )


def _tell_epoch(row: Mapping[str, float]) -> None:
    print(
        f"epoch {row['epoch']:4.0f}: KL × {row['kl_weight']:.3f}, ELBO of training images "
        f"{row['train_bound']:.2f}, of validation images {row['validation_bound']:.2f}, "
        f"{row['seconds']:.1f} s",
        flush=True,
    )


@app.command(epilog="Example: python -m research papers judge-vae runs/vae-*")
def judge_vae(
    runs: RunFolders,
    out: OutFolder = _RESULTS / FOLDER,
    samples: Annotated[int, typer.Option(min=2, help="Latent vectors of each image.")] = 5000,
    images: Images = None,
    threads: Threads = 1,
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


@app.command(epilog="Example: python -m research papers latent-use runs/vae-*")
def latent_use(runs: RunFolders, out: Out = _RESULTS / FILE) -> None:
    """Measure which latent numbers trained auto-encoders use, on all test images."""
    study_latent_use(runs, out, tell=show("used"))
    print(f"Written to {out}")
