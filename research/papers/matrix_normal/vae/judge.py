"""A trained auto-encoder is judged: test ELBO, log likelihood by importance sampling, pictures."""

import base64
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor

from leanbayes.errors import require
from leanbayes.lab.data import Dataset, Examples
from leanbayes.lab.provenance import environment_facts
from leanbayes.lab.tables import read_numbers
from leanbayes.metrics import Score
from research.papers.matrix_normal.vae.folder import VaeFolder
from research.papers.matrix_normal.vae.likelihood import LogLikelihood, log_likelihood
from research.papers.matrix_normal.vae.network import Vae
from research.papers.matrix_normal.vae.pictures import latent_walk, prior_samples, reconstructions
from research.papers.matrix_normal.vae.settings import VaeSettings
from research.papers.matrix_normal.vae.train import load_images
from research.publishing.study_file import StudyFile

_PART = 500
_SHADES = 15
_SHOWN = 10
_CURVES = ("epoch", "kl_weight", "train_bound", "validation_bound")


def file_name(settings: VaeSettings) -> str:
    """Return the name of the file of results of an auto-encoder, without its ending.

    Example:
        >>> file_name(VaeSettings("mn", (20, 2)))
        '40-mn-20x2-seed42'
    """
    size = settings.network(1).latent.size
    shape = "-" + "x".join(map(str, settings.latent)) if settings.encoder == "mn" else ""
    return f"{size}-{settings.encoder}{shape}-seed{settings.seed}"


def judge_vae(
    folder: str | Path,
    out: str | Path,
    *,
    samples: int = 5000,
    images: int | None = None,
    dataset: Dataset | None = None,
    tell: Callable[[LogLikelihood], object] | None = None,
) -> dict[str, Any]:
    """Judge a trained auto-encoder on test images, of which the file lacks some."""
    run = VaeFolder(folder)
    model, settings, trained = run.load(), run.settings, run.result()
    require(trained is not None, f"{folder} is not trained to the end; go on with papers vae")
    test = (dataset or load_images(settings)).test
    test = test[_order(len(test))[:images]]
    depends = {"training": settings.to_json(), "samples": samples, "images": len(test)}
    file = StudyFile(Path(out) / f"{file_name(settings)}.json", "auto-encoders", depends)

    def training() -> dict[str, Any]:
        curves = read_numbers(run.path / "metrics.csv")
        curve = {name: [round(float(v), 3) for v in curves[name]] for name in _CURVES}
        return {**(trained or {}), "curve": curve}

    file.fill({"training": training, "pictures": partial(_pictures, model, test)})
    parts = {
        f"images from {first}": partial(_part, model, test[first : first + _PART], samples, first)
        for first in range(0, len(test), _PART)
    }
    return file.fill(parts, tell and (lambda *_: tell(judged(file.study))))


def _order(images: int) -> Tensor:
    """One random order, so that the first images of it stand for all; in the file they do not."""
    return torch.randperm(images, generator=torch.Generator().manual_seed(0))


def _part(model: Vae, images: Examples, samples: int, seed: int) -> dict[str, Any]:
    began = process_time()
    result = asdict(log_likelihood(model, images, samples=samples, seed=seed))
    return {
        **{
            key: list(value) if isinstance(value, Score) else value for key, value in result.items()
        },
        "seed": seed,
        "processor_seconds": round(process_time() - began, 1),
        **environment_facts(),
    }


def judged(study: Mapping[str, Any]) -> LogLikelihood:
    """Return ELBO and log likelihood of all images that a study has judged."""
    parts = [part for name, part in study["parts"].items() if name.startswith("images from ")]
    plain = ("sampling_error", "effective", "images", "samples")
    return LogLikelihood.merged(
        [
            LogLikelihood(
                score=Score(*part["score"]),
                bound=Score(*part["bound"]),
                **{name: part[name] for name in plain},
            )
            for part in parts
        ]
    )


def _pictures(model: Vae, test: Examples) -> dict[str, Any]:
    """Return reconstructions of the first test images, samples, and walks between the next ones."""
    shape = list(test.stored.shape[-2:])
    x = test[: 2 * _SHOWN].x
    walked = x[_SHOWN : _SHOWN + 6] if len(x) >= _SHOWN + 6 else x[: len(x) // 2 * 2]
    sheets = {
        "reconstructions": reconstructions(model, x[:_SHOWN]),
        "samples": prior_samples(model, 5, _SHOWN),
        "walk": latent_walk(model, walked[::2], walked[1::2], _SHOWN),
    }
    return {"shape": shape, **{name: _packed(images) for name, images in sheets.items()}}


def _packed(images: Tensor) -> dict[str, Any]:
    """Sixteen shades are enough to look at, and small."""
    shades = (images * _SHADES).round().to(torch.uint8)
    text = base64.b64encode(zlib.compress(bytes(shades.flatten().tolist()), 9)).decode("ascii")
    return {"size": list(images.shape), "shades": text}


def unpacked(packed: Mapping[str, Any]) -> Tensor:
    """Return the images of a part ``pictures``, between 0 and 1."""
    shades = bytearray(zlib.decompress(base64.b64decode(packed["shades"])))
    return torch.frombuffer(shades, dtype=torch.uint8).view(packed["size"]) / _SHADES
