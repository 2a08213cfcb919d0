"""Outputs that are drawn from their means and variances."""

import torch
from torch import Tensor

from leanbayes.prediction.one_pass.gaussian import Uncertain

_TINY = torch.finfo(torch.float32).tiny
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
    """Draw normal outputs ``[draws · members, examples, …]``, correlated where that is known.

    Args:
        moments: Mean and variance of the outputs, ``[members, examples, …]``.
        noise: What :func:`output_noise` returns.
    """
    if moments.mixed is None:
        return torch.addcmul(moments.loc, moments.variance.sqrt(), noise).flatten(0, 1)
    root = _root(moments.variance, *moments.mixed)
    apart = (noise.view(len(noise), -1) @ root.mT).movedim(-2, 0)
    return (moments.loc + apart).flatten(0, 1)


def _root(variance: Tensor, weight: Tensor, inputs: Tensor) -> Tensor:
    """Return ``L`` with ``L Lᵀ = W diag(inputs) Wᵀ``, whose diagonal is replaced by ``variance``.

    Outputs that earlier ones determine get a zero, where a Cholesky factorization would fail.
    """
    size = len(weight)
    shared = inputs @ (weight.unsqueeze(1) * weight).flatten(0, 1).mT
    places = torch.arange(size, device=weight.device)
    own = places == places.unsqueeze(1)
    left = torch.where(own, variance.unsqueeze(-1), shared.unflatten(-1, (size, size)))
    columns = []
    for i in range(size):
        diagonal = left[..., i, i].unsqueeze(-1)
        is_new = (diagonal > 1e-5 * variance[..., i : i + 1]) & (places >= i)
        column = torch.where(is_new, left[..., i] * diagonal.clamp_min(_TINY).rsqrt(), 0.0)
        left = left - column.unsqueeze(-1) * column.unsqueeze(-2)
        columns.append(column)
    return torch.stack(columns, -1)
