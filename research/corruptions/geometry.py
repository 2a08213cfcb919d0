"""Pixels in other places: elastic images, large pixels and JPEG."""

import io

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from leanbayes.errors import require
from research.corruptions.base import register_corruption
from research.corruptions.borders import sampled, smoothed
from research.corruptions.seeded_noise import Noise

_BY_MISTAKE = 244 / 224  # the published program multiplies by 244 where images have 224 pixels


@register_corruption(
    "elastic-transform",
    ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    large=tuple(
        tuple(_BY_MISTAKE * part for part in parts)
        for parts in (
            (2, 0.7, 0.1),
            (2, 0.08, 0.2),
            (0.05, 0.01, 0.02),
            (0.07, 0.01, 0.02),
            (0.12, 0.01, 0.02),
        )
    ),
)
def elastic_transform(x: Tensor, rubber: tuple[float, float, float], noise: Noise) -> Tensor:
    """Three points are pulled, the image follows, and then every pixel moves a little."""
    side = min(x.shape[-2:])
    amount, smooth, pull = (side * part for part in rubber)
    x = _pulled(x, noise.uniform(3, 2, low=-pull, high=pull))
    if amount == 0:
        return x
    field = noise.uniform(2, *x.shape[-2:], low=-1.0, high=1.0)
    across, down = (amount * smoothed(field, smooth, "double", truncate=3.0)).unbind(1)
    rows, columns = (torch.arange(n).to(x) for n in x.shape[-2:])
    return sampled(x, rows[:, None] + down, columns + across, "double")


def _pulled(x: Tensor, pulls: Tensor) -> Tensor:
    """The affine image in which three points around the middle move by ``pulls [batch, 3, 2]``.

    Columns come before rows, as in OpenCV.
    """
    height, width = x.shape[-2:]
    middle = torch.tensor([width // 2, height // 2], dtype=torch.float64)
    reach = min(height, width) // 3
    points = middle + reach * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]).double()
    moved = points + pulls.double().cpu()
    moved = torch.cat([moved, torch.ones_like(moved[..., :1])], -1)
    back = torch.linalg.solve(moved, points.expand(len(x), 3, 2)).to(x)  # [batch, 3, 2]
    rows, columns = (torch.arange(n).to(x) for n in (height, width))
    column, row = (
        columns * back[:, 0, i, None, None]
        + rows[:, None] * back[:, 1, i, None, None]
        + back[:, 2, i, None, None]
        for i in range(2)
    )
    return sampled(x, row, column, "mirror")


@register_corruption("pixelate", (0.95, 0.9, 0.85, 0.75, 0.65), large=(0.6, 0.5, 0.4, 0.3, 0.25))
def pixelate(x: Tensor, share: float, noise: Noise) -> Tensor:
    """Return fewer and larger pixels: averages of those whose middle they cover, as bytes."""
    rows, columns = (_boxes(side, max(1, int(share * side))).to(x) for side in x.shape[-2:])
    small = _rounded(rows @ _rounded(x @ columns.mT))
    return F.interpolate(small, size=x.shape[-2:], mode="nearest-exact")


def _rounded(x: Tensor) -> Tensor:
    return (255 * x + 0.5 + 1e-4).floor() / 255


def _boxes(many: int, few: int) -> Tensor:
    """Return weights ``[few, many]`` that average neighbors."""
    middles = (torch.arange(many) + 0.5).double() * few / many
    inside = (middles - torch.arange(few).unsqueeze(1) - 0.5).abs() < 0.5 + 1e-9
    return inside.double() / inside.sum(1, keepdim=True)


@register_corruption("jpeg", (80, 65, 58, 50, 40), large=(25, 18, 15, 10, 7))
def jpeg(x: Tensor, quality: int, noise: Noise) -> Tensor:
    """Written as JPEG of some quality and read again, one image after another."""
    kinds = {1: "L", 3: "RGB"}
    require(x.shape[1] in kinds, f"JPEG knows 1 or 3 channels, and images have {x.shape[1]}")
    pixels = (255 * x.clamp(0, 1)).round().byte().movedim(1, -1).cpu().numpy()
    read = []
    for image in pixels:
        file = io.BytesIO()
        Image.fromarray(image.squeeze(-1) if x.shape[1] == 1 else image).save(
            file, "JPEG", quality=quality
        )
        read.append(np.asarray(Image.open(file).convert(kinds[x.shape[1]])))
    stacked = torch.from_numpy(np.stack(read)).view(len(x), *x.shape[-2:], -1)
    return stacked.movedim(-1, 1).to(x) / 255
