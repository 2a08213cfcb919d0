"""Damaged images: how far a model's confidence holds where its data do not (000, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from leanbayes.lab.data import Examples
from leanbayes.lab.data.problems import choose
from leanbayes.recipes import require

__all__ = [
    "CORRUPTIONS",
    "SEVERITIES",
    "corrupt",
    "corrupt_examples",
    "corrupted_means",
    "mean_corruption_error",
]

SEVERITIES = (1, 2, 3, 4, 5)


def _gaussian_noise(x: Tensor, scale: float, generator: Generator) -> Tensor:
    return x + scale * torch.randn(x.shape, generator=generator).to(x)


def _blur(x: Tensor, scale: float, generator: Generator) -> Tensor:
    """One Gaussian window along the rows, then along the columns; borders are repeated."""
    reach = max(1, round(4 * scale))
    places = torch.arange(-reach, reach + 1).to(x)
    window = torch.exp(-0.5 * (places / scale).square())
    window = window / window.sum()
    y = x.flatten(0, 1).unsqueeze(1)
    y = F.conv2d(F.pad(y, (reach, reach, 0, 0), mode="replicate"), window.view(1, 1, 1, -1))
    y = F.conv2d(F.pad(y, (0, 0, reach, reach), mode="replicate"), window.view(1, 1, -1, 1))
    return y.view_as(x)


def _contrast(x: Tensor, factor: float, generator: Generator) -> Tensor:
    mean = x.mean((-2, -1), keepdim=True)
    return mean + factor * (x - mean)


def _brightness(x: Tensor, shift: float, generator: Generator) -> Tensor:
    return x + shift


def _pixelate(x: Tensor, share: float, generator: Generator) -> Tensor:
    small = [max(1, int(share * side)) for side in x.shape[-2:]]
    return F.interpolate(F.interpolate(x, size=small, mode="area"), size=x.shape[-2:])


CORRUPTIONS: dict[str, tuple[Callable[[Tensor, float, Generator], Tensor], tuple[float, ...]]] = {
    "gaussian-noise": (_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "blur": (_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "brightness": (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "pixelate": (_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
}
"""Corruptions by name with their five strengths, those of CIFAR-10-C (Hendrycks and Dietterich,
2019). They follow its definitions, but are not its files: brightness is added to every channel."""


def corrupt(images: Tensor, name: str, severity: int, *, seed: int = 0) -> Tensor:
    """Damage images; the same seed gives the same damage.

    Args:
        images: ``[batch, channels, height, width]``, from 0 (black) to 1 (white).
        name: one of :data:`CORRUPTIONS`.
        severity: from 1 to 5.
        seed: of the noise.

    Example:
        >>> corrupt(torch.tensor([[[[0.0, 1.0]]]]), "contrast", 2)
        tensor([[[[0.2500, 0.7500]]]])
    """
    function, strengths = choose("corruption", name, CORRUPTIONS)
    require(severity in SEVERITIES, f"severity is {severity}; it is a whole number from 1 to 5")
    require(
        images.ndim == 4 and images.is_floating_point(),
        f"images have shape {tuple(images.shape)} and type {images.dtype}; give floats "
        "[batch, channels, height, width]",
    )
    generator = Generator().manual_seed(seed)
    return function(images, strengths[severity - 1], generator).clamp(0.0, 1.0)


def corrupt_examples(
    examples: Examples, name: str, severity: int, *, seed: int = 0, peak: int | None = None
) -> Examples:
    """Damage the images of a data set before they are scaled.

    Args:
        examples: images kept as bytes.
        name: one of :data:`CORRUPTIONS`.
        severity: from 1 to 5.
        seed: of the noise.
        peak: the byte of a white pixel; the largest there is, if not given.
    """
    stored = examples.stored
    if stored.dtype != torch.uint8 or stored.ndim != 4 or examples.scaling is None:
        raise ValueError(
            f"inputs of shape {tuple(stored.shape)} and type {stored.dtype} are no images; only "
            "images can be corrupted"
        )
    white = float(peak or max(int(stored.max()), 1))
    damaged = corrupt(stored.float() / white, name, severity, seed=seed) * white
    return Examples(examples.scaling(damaged), examples.targets)


def corrupted_means(
    results: Mapping[tuple[str, int], Mapping[str, Mapping[str, float]]],
) -> dict[str, float]:
    """The averages over kinds and severities that 000 prints as cNLL, cA and cECE.

    Args:
        results: metrics as :func:`leanbayes.lab.evaluate.evaluate` gives them, by name of the
            corruption and severity; every corruption has the same severities.

    Example:
        >>> corrupted_means({("blur", 1): {"nll": {"value": 1.0}},
        ...                  ("blur", 2): {"nll": {"value": 2.0}}})
        {'nll': 1.5}
    """
    _check_complete(results)
    names = next(iter(results.values())).keys()
    return {
        name: sum(result[name]["value"] for result in results.values()) / len(results)
        for name in names
    }


def mean_corruption_error(
    errors: Mapping[tuple[str, int], float], reference: Mapping[tuple[str, int], float]
) -> float:
    """The mCE: errors of each corruption relative to a reference network's, averaged over kinds.

    Args:
        errors: error rates by name of the corruption and severity.
        reference: the same of the reference, AlexNet in the published tables.

    Example:
        >>> mean_corruption_error({("blur", 1): 0.2, ("fog", 1): 0.3},
        ...                       {("blur", 1): 0.4, ("fog", 1): 0.3})
        0.75
    """
    _check_complete(errors)
    require(errors.keys() <= reference.keys(), "the reference lacks some of the corruptions")
    kinds = sorted({kind for kind, _ in errors})

    def total(rates: Mapping[tuple[str, int], float], kind: str) -> float:
        return sum(rates[key] for key in errors if key[0] == kind)

    return sum(total(errors, kind) / total(reference, kind) for kind in kinds) / len(kinds)


def _check_complete(results: Mapping[tuple[str, int], object]) -> None:
    require(bool(results), "there are no results to average; evaluate a corruption first")
    kinds, severities = ({key[i] for key in results} for i in range(2))
    absent = [(k, s) for k in kinds for s in severities if (k, s) not in results]
    require(not absent, f"{absent[:1]} has no result; every corruption needs the same severities")
