"""Blur: of the lens, of glass, of motion and of zooming."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from research.corruptions.base import register_corruption, to_bytes
from research.corruptions.borders import filtered, padded, smoothed, window
from research.corruptions.seeded_noise import Noise


@register_corruption("blur", (0.4, 0.6, 0.7, 0.8, 1.0), large=(1, 2, 3, 4, 6))
def blur(x: Tensor, scale: float, noise: Noise) -> Tensor:
    """Return one Gaussian window along the rows, then along the columns; borders are repeated."""
    return smoothed(x, scale)


@register_corruption(
    "defocus-blur",
    ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)),
    large=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
)
def defocus_blur(x: Tensor, lens: tuple[float, float], noise: Noise) -> Tensor:
    """Return a disk of some radius, whose edge a Gaussian window softens; borders are mirrored."""
    return filtered(x, _disk(*lens), "mirror")


def _disk(radius: float, softness: float) -> Tensor:
    """A disk on the published grid, normalized before it is softened; zeros around it left out."""
    reach, soft = (8, 1) if radius <= 8 else (int(radius), 2)
    squares = torch.arange(-reach, reach + 1).square()
    disk = (squares[:, None] + squares <= radius**2).double()
    edge = window(softness, soft)
    kernel = filtered((disk / disk.sum())[None, None], edge[:, None] * edge, "mirror")[0, 0]
    empty = max(0, reach - int(radius) - soft)
    return kernel[empty : len(kernel) - empty, empty : len(kernel) - empty]


@register_corruption(
    "glass-blur",
    ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    large=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
)
def glass_blur(x: Tensor, pane: tuple[float, int, int], noise: Noise) -> Tensor:
    """Return images blurred, with every pixel that of a neighbor, and blurred again.

    The published program means to swap neighbors but copies them, which is done here too.
    """
    scale, reach, rounds = pane
    x = to_bytes(smoothed(x, scale))
    for _ in range(rounds):
        source = _neighbors(x, reach, noise)
        index = source.unsqueeze(1).expand(-1, x.shape[1], -1)
        x = x.flatten(2).gather(-1, index).view_as(x)
    return smoothed(x, scale)


def _neighbors(x: Tensor, reach: int, noise: Noise) -> Tensor:
    """From where each pixel is copied, ``[batch, height · width]``.

    From the last to the first, each takes the pixel that stands ``−reach … reach − 1`` rows and
    columns away. If that one has taken another's place before, then so does this one: the chain is
    followed by doubling its steps.
    """
    height, width = x.shape[-2:]
    steps = noise.whole(2 * reach, 2, height, width) - reach
    rows, columns = (torch.arange(side, device=x.device) for side in (height, width))
    inner_row = (rows > reach) & (rows <= height - reach)
    inner_column = (columns > reach) & (columns <= width - reach)
    steps = steps * (inner_row[:, None] & inner_column)
    row = rows[:, None] + steps[:, 0]
    source = (row * width + columns + steps[:, 1]).flatten(1)
    place = torch.arange(height * width, device=x.device)
    moved_before = source > place
    while bool(moved_before.any()):
        further, go_on = source.gather(1, source), moved_before.gather(1, source)
        source = torch.where(moved_before, further, source)
        moved_before = moved_before & go_on
    return source


@register_corruption(
    "motion-blur",
    ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    large=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
)
def motion_blur(x: Tensor, motion: tuple[int, float], noise: Noise) -> Tensor:
    """Each image moves in a separate direction, less than 45° from the rows."""
    return moved(x, *motion, noise.uniform(low=-45.0, high=45.0))


def moved(x: Tensor, radius: int, scale: float, degrees: Tensor) -> Tensor:
    """Blur by motion as ImageMagick has it, rounded to bytes as it does.

    Pixels along a line from each are averaged with one half of a Gaussian window; beyond the border
    the last pixel is repeated.
    """
    height, width = x.shape[-2:]
    half = window(scale, 2 * radius)[2 * radius :]
    shares: list[float] = (half / half.sum()).tolist()
    angles = degrees.double().cpu().deg2rad()
    reach = 2 * radius
    places = padded(x, reach, reach, "edge").unfold(2, height, 1).unfold(3, width, 1)
    images = torch.arange(len(x), device=x.device)
    total = torch.zeros_like(x)
    for step, weight in enumerate(shares):
        row, column = (
            ((step * along - 0.5).ceil().long() + reach).to(x.device)
            for along in (angles.sin(), angles.cos())
        )
        total += weight * places[images, :, row, column]
    return (255 * total).round() / 255


@register_corruption(
    "zoom-blur",
    ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    large=((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
)
def zoom_blur(x: Tensor, zoom: tuple[float, float], noise: Noise) -> Tensor:
    """Return the average of the image and of its middle, enlarged step by step.

    Rounding adds a step to some strengths, as in the authors' code.
    """
    factors = np.arange(1, *zoom).tolist()
    return (x + sum(zoomed(x, factor) for factor in factors)) / (len(factors) + 1)


def zoomed(x: Tensor, factor: float) -> Tensor:
    """Return the middle of an image at its old size, interpolated between corners."""
    sides = x.shape[-2:]
    seen = [math.ceil(side / factor) for side in sides]
    top, left = ((side - part) // 2 for side, part in zip(sides, seen, strict=True))
    middle = x[..., top : top + seen[0], left : left + seen[1]]
    size = [round(factor * part) for part in seen]
    large = F.interpolate(middle, size=size, mode="bilinear", align_corners=True)
    top, left = ((a - b) // 2 for a, b in zip(size, sides, strict=True))
    return large[..., top : top + sides[0], left : left + sides[1]]
