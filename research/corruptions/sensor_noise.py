"""Noise of sensors: Gaussian, shot, impulse and speckle."""

import torch
from torch import Tensor

from research.corruptions.base import register_corruption
from research.corruptions.seeded_noise import Noise


@register_corruption(
    "gaussian-noise", (0.04, 0.06, 0.08, 0.09, 0.10), large=(0.08, 0.12, 0.18, 0.26, 0.38)
)
def gaussian_noise(x: Tensor, scale: float, noise: Noise) -> Tensor:
    """Return normal noise of one standard deviation everywhere."""
    return x + scale * noise.normal(*x.shape[1:])


@register_corruption("shot-noise", (500, 250, 100, 75, 50), large=(60, 25, 12, 5, 3))
def shot_noise(x: Tensor, photons: float, noise: Noise) -> Tensor:
    """Count photons in every pixel, with this mean where it is white."""
    return noise.poisson(photons * x) / photons


@register_corruption(
    "impulse-noise", (0.01, 0.02, 0.03, 0.05, 0.07), large=(0.03, 0.06, 0.09, 0.17, 0.27)
)
def impulse_noise(x: Tensor, share: float, noise: Noise) -> Tensor:
    """So many pixels are black or white, as many the one as the other."""
    u = noise.uniform(*x.shape[1:])
    return torch.where(u < share, (u < share / 2).to(x), x)


@register_corruption(
    "speckle-noise", (0.06, 0.1, 0.12, 0.16, 0.2), large=(0.15, 0.2, 0.35, 0.45, 0.6)
)
def speckle_noise(x: Tensor, scale: float, noise: Noise) -> Tensor:
    """Return normal noise in proportion to the light."""
    return x + x * scale * noise.normal(*x.shape[1:])
