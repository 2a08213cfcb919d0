"""Corruptions by name, and how they are applied."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from leanbayes.errors import require
from leanbayes.lab.data import Examples
from leanbayes.precision import wide_dtype
from leanbayes.registry import Registry
from research.corruptions.seeded_noise import Noise

SEVERITIES = (1, 2, 3, 4, 5)
LARGE = 64
"""Images whose sides are all longer than this have the strengths of ImageNet-C."""
_SLICE = 2**21
"""How many pixels are damaged at once: what a cache holds several times."""

Damage = TypeVar("Damage", bound=Callable[[Tensor, Any, Noise], Tensor])


@dataclass(frozen=True)
class Corruption:
    """One way to damage images.

    Args:
        name: what :func:`corrupt` takes.
        strengths: for the severities 1 to 5.
        large: the same for images of more than 64 pixels per side.
        damage: images from 0 to 1, a strength and noise to damaged images.
    """

    name: str
    strengths: tuple[Any, ...]
    large: tuple[Any, ...]
    damage: Callable[[Tensor, Any, Noise], Tensor] = field(compare=False)

    def strength(self, severity: int, images: Tensor) -> Any:
        """Return how strong a severity is for images of this size."""
        of_size = self.large if min(images.shape[-2:]) > LARGE else self.strengths
        return of_size[severity - 1]


CORRUPTIONS = Registry[Corruption]("corruption")
"""Corruptions by name with their strengths: those of CIFAR-10-C, and of ImageNet-C for images of
more than 64 pixels per side (Hendrycks and Dietterich, 2019), compared with the authors'
``make_cifar_c.py`` and ``make_imagenet_c.py``. Noise is redrawn, so single images differ from
the published files.
"""


def register_corruption(
    name: str, strengths: tuple[Any, ...], large: tuple[Any, ...] | None = None
) -> Callable[[Damage], Damage]:
    """Add a corruption: it decorates a function of images, a strength and noise.

    Args:
        name: what to call it.
        strengths: five, for the severities 1 to 5.
        large: five for images of more than 64 pixels per side; the same if not given.

    ``docs/extending/corruption.py`` is one to copy.
    """
    for given in (strengths, large or strengths):
        require(
            len(given) == len(SEVERITIES),
            f"corruption {name!r} has {len(given)} strengths; give five, one a severity",
        )

    def register(damage: Damage) -> Damage:
        CORRUPTIONS.register(Corruption(name, strengths, large or strengths, damage), name=name)
        return damage

    return register


def corrupt(
    images: Tensor,
    name: str,
    severity: int,
    *,
    seed: int = 0,
    index: Tensor | None = None,
    truncate: bool = True,
) -> Tensor:
    """Damage images; an image's damage depends on the seed and on its number alone.

    Args:
        images: ``[batch, channels, height, width]``, from 0 (black) to 1 (white).
        name: one of :data:`CORRUPTIONS`.
        severity: from 1 to 5. All severities share their noise.
        seed: of the noise.
        index: the number of each image in its data set, for parts of one; 0, 1, 2 … if not given.
        truncate: to the 256 levels of a byte, rounding down, as the published files are.

    Example:
        >>> corrupt(torch.tensor([[[[0.0, 1.0]]]]), "contrast", 2, truncate=False)
        tensor([[[[0.2500, 0.7500]]]])
        >>> 255 * corrupt(torch.tensor([[[[0.0, 1.0]]]]), "contrast", 2)
        tensor([[[[ 63., 191.]]]])
    """
    index = torch.arange(len(images)) if index is None else index
    _check(images, severity, index)
    chosen = CORRUPTIONS[name]
    strength = chosen.strength(severity, images)
    damaged = torch.empty_like(images)
    step = max(1, _SLICE // max(1, images[:1].numel()))
    for start in range(0, len(images), step):
        part = slice(start, start + step)
        x = images[part].to(wide_dtype(images.dtype))
        x = chosen.damage(x, strength, Noise(index[part], f"{seed}/{name}", x)).clamp(0.0, 1.0)
        damaged[part] = to_bytes(x) if truncate else x
    return damaged


def _check(images: Tensor, severity: int, index: Tensor) -> None:
    require(severity in SEVERITIES, f"severity is {severity}; it is a whole number from 1 to 5")
    require(
        images.ndim == 4 and images.is_floating_point(),
        f"images have shape {tuple(images.shape)} and type {images.dtype}; give floats "
        "[batch, channels, height, width]",
    )
    low, high = images.aminmax() if images.numel() else (0.0, 1.0)
    require(
        bool(low >= 0 and high <= 1),
        f"images must be from 0 to 1, got {low:g} to {high:g}. Undo their scaling first.",
    )
    require(
        index.shape == images.shape[:1] and not index.is_floating_point(),
        f"index has shape {tuple(index.shape)} and type {index.dtype}; give one whole number for "
        f"each of {len(images)} images",
    )


def to_bytes(x: Tensor) -> Tensor:
    """Round down to 256 levels; within a thousandth of a level counts as reaching it.

    Example:
        >>> 255 * to_bytes(torch.tensor([0.5, 3 / 255, 1.0]))
        tensor([127.,   3., 255.])
    """
    return (255 * x + 1e-3).floor() / 255


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
            f"inputs of shape {tuple(stored.shape)} and type {stored.dtype} are not images; only "
            "images can be corrupted"
        )
    white = float(peak or max(int(stored.max()), 1))
    damaged = corrupt(stored.float() / white, name, severity, seed=seed) * white
    return Examples(examples.scaling(damaged), examples.targets)
