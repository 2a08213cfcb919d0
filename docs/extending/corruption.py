"""A corruption: a function of images, a strength and noise."""

from torch import Tensor

from research.corruptions import Noise, register_corruption


@register_corruption("dead-rows", (0.02, 0.05, 0.1, 0.2, 0.4))
def dead_rows(x: Tensor, share: float, noise: Noise) -> Tensor:
    """Rows of pixels that a broken sensor leaves black."""
    alive = noise.uniform(*x.shape[1:-1], 1) >= share
    return x * alive.to(x)
