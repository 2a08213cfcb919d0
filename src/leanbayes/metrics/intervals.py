"""Coverage and width of predictive intervals."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes.display import DisplayTable, shown_as_table
from leanbayes.errors import require
from leanbayes.metrics.numbers import check_alike, of_examples
from leanbayes.metrics.scores import Score, average

_LEVELS = tuple(i / 20 for i in range(1, 20))


@shown_as_table
class Coverage(NamedTuple):
    """How often central intervals of nominal levels hold the truth.

    Attributes:
        nominal: what the intervals promise.
        observed: the share of targets inside.
        examples: how many targets there are.
    """

    nominal: Tensor
    observed: Tensor
    examples: int

    def table(self) -> DisplayTable:
        """A row for every level."""
        levels = zip(self.nominal.tolist(), self.observed.tolist(), strict=True)
        rows = [[f"{100 * level:.0f} %", f"{100 * share:.1f} %"] for level, share in levels]
        title = f"coverage of {self.examples:,} targets"
        return DisplayTable(["interval", "observed"], rows, title, left=())


def coverage_curve(u: Tensor, levels: Sequence[float] = _LEVELS) -> Coverage:
    """The share of targets inside the central predictive interval of each level.

    With ``u = P(target ≤ y)``, the interval of level ``p`` holds ``y`` where ``|u − ½| ≤ p / 2``.

    Args:
        u: the predictive distribution functions at the targets, such as ``Prediction.cdf(y)``.
        levels: between 0 and 1.

    Example:
        >>> coverage_curve(torch.tensor([0.5, 0.99]), [0.5, 0.9]).observed
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    require(u.numel() > 0, "there are no targets to cover; give at least one")
    nominal = torch.tensor(levels, dtype=torch.float64, device=u.device)
    off = 2 * (u.detach().double().flatten() - 0.5).abs()
    return Coverage(nominal, (off <= nominal[:, None]).double().mean(1), u.numel())


def interval_coverage(low: Tensor, high: Tensor, y: Tensor) -> Score:
    """The share of targets that lie in their intervals, ends included.

    Args:
        low: lower ends ``[examples, …]``.
        high: upper ends.
        y: the truth.

    Example:
        >>> low, high = torch.zeros(4), torch.ones(4)
        >>> interval_coverage(low, high, torch.tensor([0.5, 0.0, 2.0, 1.0])).value
        0.75
    """
    check_alike(low, y)
    return average(of_examples((low <= y) & (y <= high)))


def interval_width(low: Tensor, high: Tensor) -> Score:
    """How wide intervals are on average.

    Args:
        low: lower ends ``[examples, …]``.
        high: upper ends.

    Example:
        >>> interval_width(torch.zeros(2), torch.tensor([1.0, 3.0]))
        2.00 ± 0.71
    """
    check_alike(low, high)
    return average(of_examples(high - low))
