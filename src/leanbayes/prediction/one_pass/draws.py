"""Outputs that are drawn from their means and variances."""

import torch
from torch import Tensor

from leanbayes.prediction.one_pass.gaussian import Uncertain

_SOBOL_LIMIT = torch.quasirandom.SobolEngine.MAXDIM


def output_noise(moments: Uncertain, draws: int, seed: int | None = None) -> Tensor:
    """Return normal noise ``[draws, 1, …, 1, size]`` for outputs, by a scrambled Sobol sequence.

    All examples share the points, one dimension for each entry of the last dimension, so the same
    moments and seed give the same draws.

    Args:
        moments: Mean and variance of the outputs, ``[members, examples, …]``.
        draws: Number of draws for each member.
        seed: Seed of the scrambling; 0 if not given.
    """
    size = moments.shape[-1] if moments.ndim > 2 else 1
    if size <= _SOBOL_LIMIT:
        sobol = torch.quasirandom.SobolEngine(size, scramble=True, seed=(seed or 0) % 2**31)
        points = sobol.draw(draws, dtype=torch.float64)
        noise = torch.special.ndtri(points.clamp(1e-9, 1 - 1e-9))
    else:
        generator = torch.Generator().manual_seed(seed or 0)
        noise = torch.randn(draws, size, generator=generator, dtype=torch.float64)
    return noise.to(moments.loc).view(draws, *(1,) * (moments.ndim - 1), size)


def draw_outputs(moments: Uncertain, noise: Tensor) -> Tensor:
    """Draw normal outputs ``[draws · members, examples, …]``.

    Args:
        moments: Mean and variance of the outputs, ``[members, examples, …]``.
        noise: The result of :func:`output_noise`.
    """
    return torch.addcmul(moments.loc, moments.variance.sqrt(), noise).flatten(0, 1)
