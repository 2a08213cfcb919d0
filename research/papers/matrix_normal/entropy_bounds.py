"""How far the bounds of a matrix normal plus a diagonal are from the exact entropy."""

import torch
from torch.distributions import MultivariateNormal

from leanbayes.distributions import KroneckerNormal, Triangular
from research.publishing.tables import markdown_table

_SHAPES = ((3, 4), (8, 6), (20, 16))
_SPREADS = (0.0, 1.0, 3.0)
_DRAWS = 20


def gaps(shape: tuple[int, int], spread: float, draws: int = _DRAWS) -> tuple[float, float]:
    """Exact entropy minus Minkowski's bound and minus that of the pivots, in nats for each weight.

    Means over random factors with unit diagonals and standard normal numbers below, over √n, and
    over random diagonals whose log standard deviations have the given spread.

    Example:
        >>> minkowski, pivots = gaps((3, 4), 1.0)
        >>> 0 < pivots < minkowski
        True
    """
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    total = torch.zeros(2, dtype=torch.float64)
    for _ in range(draws):
        rows, columns = (
            Triangular(torch.eye(n, dtype=torch.float64) + normal(n, n).tril(-1) / n**0.5)
            for n in shape
        )
        scale = (spread * normal(*shape)).exp()
        loc = torch.zeros_like(scale)
        minkowski = KroneckerNormal(loc, rows, columns, scale, bound="minkowski")
        pivots = KroneckerNormal(loc, rows, columns, scale, bound="pivots")
        exact = MultivariateNormal(loc.flatten(), pivots.covariance()).entropy()
        total += torch.stack([exact - minkowski.entropy(), exact - pivots.entropy()])
    first, second = (total / (draws * shape[0] * shape[1])).tolist()
    return first, second


def bounds_table() -> str:
    """Return a Markdown table of gaps over shapes and spreads."""
    lines = []
    for shape in _SHAPES:
        for spread in _SPREADS:
            found = gaps(shape, spread)
            lines.append([f"{shape[0]} × {shape[1]}", f"{spread:g}", *(f"{g:.3f}" for g in found)])
    return markdown_table(["matrix", "spread of log √d", "Minkowski", "pivots"], lines)
