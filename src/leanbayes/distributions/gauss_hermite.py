"""Gauss–Hermite quadrature: moments of a smooth function of a normal number."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

POINTS = 10


@cache
def quadrature(points: int) -> list[tuple[float, float]]:
    """Return nodes and weights for a standard normal: eigenvalues of the Jacobi matrix of Hermite's
    polynomials, and squares of the first components of its eigenvectors (Golub and Welsch, 1969).
    """
    beside = torch.arange(1, points, dtype=torch.float64).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    return list(zip(nodes.tolist(), vectors[0].square().tolist(), strict=True))


def normal_moments(
    function: Callable[[Tensor], Tensor], loc: Tensor, variance: Tensor, points: int = POINTS
) -> tuple[Tensor, Tensor]:
    """Return the mean and variance of ``function(x)`` for ``x ~ N(loc, variance)``, elementwise.

    Deviations from ``function(loc)`` are summed, so a small variance keeps its digits.
    """
    center, std = function(loc), variance.sqrt()
    first, second = torch.zeros_like(loc), torch.zeros_like(loc)
    for node, weight in quadrature(points):
        deviation = function(torch.add(loc, std, alpha=node)) - center
        first = torch.add(first, deviation, alpha=weight)
        second = torch.addcmul(second, deviation, deviation, value=weight)
    return center + first, (second - first.square()).clamp_min(0.0)
