"""A corruption: a function of images, a strength and a generator of noise."""

import torch
from torch import Generator, Tensor

from leanbayes.lab.corrupt import register_corruption


@register_corruption("dead-rows", (0.02, 0.05, 0.1, 0.2, 0.4))
def dead_rows(x: Tensor, share: float, generator: Generator) -> Tensor:
    """Rows of pixels that a broken sensor leaves black."""
    alive = torch.rand(*x.shape[:-1], 1, generator=generator) >= share
    return x * alive.to(x)
