"""Brightness, contrast and saturation."""

import torch
from torch import Tensor

from research.corruptions.base import register_corruption
from research.corruptions.seeded_noise import Noise


@register_corruption("brightness", (0.05, 0.1, 0.15, 0.2, 0.3), large=(0.1, 0.2, 0.3, 0.4, 0.5))
def brightness(x: Tensor, shift: float, noise: Noise) -> Tensor:
    """Raise the largest channel by an amount and the others in proportion; hues stay."""
    value = x.amax(1, keepdim=True)
    brighter = (value + shift).clamp(0.0, 1.0)
    return torch.where(value > 0, x / value.clamp_min(1e-12) * brighter, brighter)


@register_corruption("contrast", (0.75, 0.5, 0.4, 0.3, 0.15), large=(0.4, 0.3, 0.2, 0.1, 0.05))
def contrast(x: Tensor, factor: float, noise: Noise) -> Tensor:
    """Move every channel closer to its mean."""
    mean = x.mean((-2, -1), keepdim=True)
    return mean + factor * (x - mean)


@register_corruption(
    "saturate",
    ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    large=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
)
def saturate(x: Tensor, change: tuple[float, float], noise: Noise) -> Tensor:
    """Colors are paler or stronger, and gray becomes red where something is added.

    An image of one channel has no colors and stays as it is.
    """
    if x.shape[1] == 1:
        return x
    factor, shift = change
    value = x.amax(1, keepdim=True)
    chroma = value - x.amin(1, keepdim=True)
    saturation = chroma / value.clamp_min(1e-12)
    red = torch.ones_like(x)
    red[:, 0] = 0.0
    away = torch.where(chroma > 0, (value - x) / chroma.clamp_min(1e-12), red)
    return value * (1 - (factor * saturation + shift).clamp(0.0, 1.0) * away)
