"""A data set: a function that returns training and test examples."""

import math

import torch

from leanbayes.lab.data import Dataset, Examples, register_dataset


@register_dataset("spirals", task="classification", license="CC0", source="computed on the spot")
def spirals(*, points: int = 300, noise: float = 0.1, seed: int = 0) -> Dataset:
    """Two arms of a spiral, one class each."""
    generator = torch.Generator().manual_seed(seed)
    angle = 3 * math.pi * torch.rand(2 * points, generator=generator).sqrt()
    y = torch.arange(2 * points) % 2
    arm = torch.stack([angle.cos(), angle.sin()], -1) * (angle / 5)[:, None]
    x = arm * (1 - 2 * y)[:, None] + noise * torch.randn(2 * points, 2, generator=generator)
    train, test = Examples(x[:points], y[:points]), Examples(x[points:], y[points:])
    return Dataset("spirals", "classification", train, test, classes=("left", "right"))
