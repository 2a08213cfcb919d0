"""Weather: snow, frost and fog."""

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from leanbayes.lab.data.extras import extra
from research.corruptions.base import LARGE, register_corruption, to_bytes
from research.corruptions.blurs import moved, zoomed
from research.corruptions.seeded_noise import Noise

Snow = tuple[float, float, float, float, int, float, float]


def luminance(x: Tensor) -> Tensor:
    """Return how bright colors are, ``[batch, 1, height, width]``; other images are averaged."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    weights = torch.tensor([0.299, 0.587, 0.114]).to(x)
    return torch.einsum("bchw,c->bhw", x, weights).unsqueeze(1)


@register_corruption(
    "snow",
    (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    large=(
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
)
def snow(x: Tensor, fall: Snow, noise: Noise) -> Tensor:
    """Return flakes that fall, and a paler image behind them."""
    loc, scale, zoom, threshold, radius, spread, share = fall
    layer = zoomed(loc + scale * noise.normal(1, *x.shape[-2:]), zoom)
    layer = to_bytes(torch.where(layer < threshold, 0.0, layer).clamp(0.0, 1.0))
    layer = moved(layer, radius, spread, noise.uniform(low=-135.0, high=-45.0))
    pale = torch.maximum(x, 1.5 * luminance(x) + 0.5)
    return share * x + (1 - share) * pale + layer + layer.flip(-2, -1)


@register_corruption(
    "frost",
    ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    large=((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
)
def frost(x: Tensor, shares: tuple[float, float], noise: Noise) -> Tensor:
    """Return a piece of one of five photographs of frozen windows, over the image."""
    of_image, of_frost = shares
    textures = _textures(max(x.shape[-2:]))
    chosen, place = noise.whole(len(textures)).tolist(), noise.uniform(2).tolist()
    height, width = x.shape[-2:]
    pieces = []
    for number, where in zip(chosen, place, strict=True):
        texture = textures[number]
        top, left = (
            int(share * (side - part))
            for share, side, part in zip(where, texture.shape[1:], (height, width), strict=True)
        )
        pieces.append(texture[:, top : top + height, left : left + width])
    windows = torch.stack(pieces).to(x)
    return of_image * x + of_frost * (windows if x.shape[1] == 3 else luminance(windows))


def frost_is_here() -> bool:
    """Return whether the photographs of frost are installed."""
    try:
        _photographs()
    except ImportError:
        return False
    return True


def _photographs() -> Traversable:
    package = "torch_uncertainty_assets.frost"
    extra(package, "torch-uncertainty-assets", "the corruption frost", "frost")
    return resources.files(package)


@cache
def _textures(side: int) -> tuple[Tensor, ...]:
    """Return frozen windows that a crop of this side can move in.

    The published ones are a fifth of the photographs for 32 pixels, and whole for ImageNet. Every
    fifth pixel is what bilinear interpolation makes of them.
    """
    folder = _photographs()
    stride = 1 if side > LARGE else max(1, 5 * 32 // max(side, 32))
    textures = []
    for number in range(1, 6):
        with folder.joinpath(f"frost{number}.jpg").open("rb") as file:
            pixels = np.array(Image.open(file).convert("RGB"))
        texture = torch.from_numpy(pixels).movedim(-1, 0).float() / 255
        texture = texture[:, stride // 2 :: stride, stride // 2 :: stride]
        least = min(texture.shape[1:])
        if least <= side:
            larger = F.interpolate(texture[None], scale_factor=(side + 1) / least, mode="bilinear")
            texture = larger[0]
        textures.append(texture)
    return tuple(textures)


@register_corruption(
    "fog",
    ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    large=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
)
def fog(x: Tensor, density: tuple[float, float], noise: Noise) -> Tensor:
    """A cloud is added, and the whole made as bright as the brightest pixel was."""
    thick, decay = density
    height, width = x.shape[-2:]
    side = 2 ** (max(height, width, 2) - 1).bit_length()
    cloud = plasma(noise.uniform(side, side, low=-1.0, high=1.0), decay)
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + thick * cloud[:, None, :height, :width]) * brightest / (brightest + thick)


def plasma(wobble: Tensor, decay: float) -> Tensor:
    """Return clouds from 0 to 1 by midpoint displacement (diamond-square) on a torus.

    A point in the middle of four has their mean plus noise, which is divided by ``decay²`` whenever
    the distance of points is halved.

    Args:
        wobble: noise between −1 and 1 for every point, ``[batch, side, side]``; the side is a power
            of two.
        decay: at least 1; more is smoother.
    """
    clouds = torch.zeros_like(wobble)
    step, size = wobble.shape[-1], 100.0**2
    while step >= 2:
        half = step // 2
        corner, middle = slice(0, None, step), slice(half, None, step)

        def fill(rows: slice, columns: slice, *around: Tensor, size: float = size) -> None:
            mean = sum(around[1:], around[0]) / 4
            clouds[:, rows, columns] = mean + size * wobble[:, rows, columns]

        corners = clouds[:, corner, corner]
        below = corners.roll(-1, 1)
        fill(middle, middle, corners, below, corners.roll(-1, 2), below.roll(-1, 2))
        middles = clouds[:, middle, middle]
        fill(corner, middle, corners, corners.roll(-1, 2), middles, middles.roll(1, 1))
        fill(middle, corner, corners, corners.roll(-1, 1), middles, middles.roll(1, 2))
        step, size = half, size / decay**2
    low, high = (f(clouds, (1, 2), keepdim=True) for f in (torch.amin, torch.amax))
    return (clouds - low) / (high - low)
