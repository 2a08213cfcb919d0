"""Metrics of predicted numbers and of their intervals."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes.display import DisplayTable, shown_as_table
from leanbayes.errors import require
from leanbayes.metrics.scores import Score, average, takes_arrays


@takes_arrays
def rmse(mean: Tensor, y: Tensor) -> Score:
    """Return the root mean square error; its standard error is that of the square, to first order.

    Args:
        mean: predictions ``[examples, …]``.
        y: the truth, of the same shape.

    Returns:
        The error, with its standard error.

    Raises:
        ValueError: If the shapes do not fit.
    """
    check_alike(mean, y)
    square = average(of_examples((mean - y).square()))
    root = square.value**0.5
    return Score(root, square.error / (2 * root) if root else 0.0)


@takes_arrays
def crps(draws: Tensor, y: Tensor) -> Score:
    """Return the continuous ranked probability score of predictive draws: 0 is perfect.

    It is ``E|X − y| − ½ E|X − X'|`` with the mean over pairs of different draws, an unbiased
    estimate for their distribution [Gneiting and Raftery, 2007, eq. 21]. With one draw it is the
    absolute error.

    Args:
        draws: predicted numbers ``[draws, examples, …]``, such as ``Prediction.draw()``.
        y: the truth ``[examples, …]``.

    Returns:
        The score, with its standard error.

    Raises:
        ValueError: If there are no draws or the shapes do not fit.
    """
    count = len(draws)
    require(count > 0, "there are no draws; give [draws, examples, …]")
    check_alike(draws[0], y)
    off = (draws.double() - y).abs().mean(0)
    rank = torch.arange(count, dtype=torch.float64, device=draws.device)
    weights = (2 * rank - count + 1).reshape(-1, *(1,) * y.ndim)
    spread = (weights * draws.double().sort(0).values).sum(0) / max(count * (count - 1), 1)
    return average(of_examples(off - spread))


def check_alike(predicted: Tensor, y: Tensor) -> None:
    """Raise unless there is one prediction for every target."""
    require(
        predicted.shape == y.shape and len(y) > 0,
        f"predictions have shape {tuple(predicted.shape)} and targets {tuple(y.shape)}; give the "
        "same, for at least one example",
    )


def of_examples(values: Tensor) -> Tensor:
    """Return the average of every example ``[examples, …]``, in float64."""
    return values.detach().double().reshape(len(values), -1).mean(-1)


_LEVELS = tuple(i / 20 for i in range(1, 20))


@shown_as_table
class Coverage(NamedTuple):
    """Shares of targets inside central intervals, by nominal level.

    Attributes:
        nominal: nominal coverage of the intervals.
        observed: the share of targets inside.
        examples: number of targets.
    """

    nominal: Tensor
    observed: Tensor
    examples: int

    def table(self) -> DisplayTable:
        """Return a row for every level."""
        levels = zip(self.nominal.tolist(), self.observed.tolist(), strict=True)
        rows = [[f"{100 * level:.0f}%", f"{100 * share:.1f}%"] for level, share in levels]
        title = f"coverage of {self.examples:,} targets"
        return DisplayTable(["interval", "observed"], rows, title, left=())


def coverage_curve(u: Tensor, levels: Sequence[float] = _LEVELS) -> Coverage:
    """Return the share of targets inside the central predictive interval of each level.

    With ``u = P(target ≤ y)``, the interval of level ``p`` holds ``y`` where ``|u − ½| ≤ p / 2``.

    Args:
        u: the predictive distribution functions at the targets, such as ``Prediction.cdf(y)``.
        levels: between 0 and 1.

    Returns:
        Nominal and observed coverage.

    Raises:
        ValueError: If there are no targets.
    """
    require(u.numel() > 0, "there are no targets to cover; give at least one")
    nominal = torch.tensor(levels, dtype=torch.float64, device=u.device)
    off = 2 * (u.detach().double().flatten() - 0.5).abs()
    return Coverage(nominal, (off <= nominal[:, None]).double().mean(1), u.numel())


@takes_arrays
def interval_coverage(low: Tensor, high: Tensor, y: Tensor) -> Score:
    """Return the share of targets inside their intervals, ends included.

    Args:
        low: lower ends ``[examples, …]``.
        high: upper ends.
        y: the truth.

    Returns:
        The share, with its standard error.

    Raises:
        ValueError: If the shapes do not fit.
    """
    check_alike(low, y)
    return average(of_examples((low <= y) & (y <= high)))


@takes_arrays
def interval_width(low: Tensor, high: Tensor) -> Score:
    """Return the average width of intervals.

    Args:
        low: lower ends ``[examples, …]``.
        high: upper ends.

    Returns:
        The width, with its standard error.

    Raises:
        ValueError: If the shapes do not fit.
    """
    check_alike(low, high)
    return average(of_examples(high - low))
