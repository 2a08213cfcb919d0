"""The section of a run that predicts numbers: intervals, their coverage, and where errors are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes.lab import plots
from leanbayes.lab.data import Dataset, Scaling
from leanbayes.lab.report.html import Html, figure, grid, section
from leanbayes.lab.report.numbers import number
from leanbayes.lab.report.study import Study, register_section
from leanbayes.lab.runs import Run
from leanbayes.predict import Prediction

__all__ = ["Coverage", "interval_coverage", "regression"]

LEVELS = tuple(i / 20 for i in range(1, 20))
_INTERVAL = 0.9
_MOST_POINTS = 200
_MOST_DOTS = 2000
_UNITS = "in the units of the raw targets"


class Coverage(NamedTuple):
    """How often central intervals of nominal levels hold the truth."""

    nominal: Tensor
    observed: Tensor


def interval_coverage(prediction: Prediction, y: Tensor) -> Coverage:
    """The share of targets inside the central predictive interval of each level.

    With ``u = P(target ≤ y)`` under the predictive mixture, the interval of level ``p`` holds
    ``y`` where ``|u − ½| ≤ p / 2``.

    Example:
        >>> import leanbayes as lb
        >>> prediction = Prediction(torch.zeros(1, 2), lb.Gaussian(1.0))
        >>> interval_coverage(prediction, torch.tensor([0.0, 9.0])).observed.unique()
        tensor([0.5000], dtype=torch.float64)
    """
    u = prediction.likelihood.cdf(prediction.samples.double(), y).flatten()
    nominal = torch.tensor(LEVELS, dtype=torch.float64)
    return Coverage(nominal, (2 * (u - 0.5).abs() <= nominal[:, None]).double().mean(1))


@register_section
def regression(run: Run, study: Study) -> Html | None:
    """Predicted against true numbers, coverage of intervals, error against predicted spread."""
    test, dataset = study.test, study.dataset
    if test is None or dataset is None or test.has_classes:
        return None
    if not {"mean", "quantiles"} <= set(test.answers):
        return None
    y = dataset.test[: test.samples.shape[1]].y
    truth, mean = _raw(y, dataset), _raw(test.mean, dataset)
    stretch = (dataset.target_scaling or Scaling()).scale
    spread = (test.variance.sqrt().double() * stretch).flatten()
    parts = [_intervals(test, y, dataset), _coverage(test, y), _errors(truth, mean, spread)]
    return section("Predictive intervals", grid(parts))


def _intervals(test: Prediction, y: Tensor, dataset: Dataset) -> Html:
    few = slice(None, _MOST_POINTS)
    shown = Prediction(test.samples[:, few], test.likelihood)
    ends = ((1 - _INTERVAL) / 2, (1 + _INTERVAL) / 2)
    low, high = (_raw(quantile, dataset) for quantile in shown.quantiles(ends))
    truth, mean = _raw(y[few], dataset), _raw(shown.mean, dataset)
    return figure(
        plots.intervals(truth, mean, low, high),
        f"Predicted mean and {_INTERVAL:.0%} interval over the truth, for {len(truth)} test "
        f"targets, {_UNITS}.",
    )


def _coverage(test: Prediction, y: Tensor) -> Html:
    nominal, observed = interval_coverage(test, y)
    held = float(observed[LEVELS.index(_INTERVAL)])
    return figure(
        plots.coverage(nominal, observed, y.numel()),
        f"Coverage of predictive intervals: those of {_INTERVAL:.0%} hold {held:.1%} of "
        f"{y.numel()} test targets. Below the diagonal intervals are too narrow, above it too "
        "wide.",
    )


def _errors(truth: Tensor, mean: Tensor, spread: Tensor) -> Html:
    error = (truth - mean).abs()
    root, expected = (float(values.square().mean().sqrt()) for values in (error, spread))
    return figure(
        plots.errors(spread[:_MOST_DOTS], error[:_MOST_DOTS]),
        f"Error over the predicted standard deviation, {_UNITS}, with the root mean square of up "
        f"to ten equal groups; it is {number(root)} over all, and {number(expected)} was "
        "predicted.",
    )


def _raw(values: Tensor, dataset: Dataset) -> Tensor:
    """Numbers in the units of the raw targets, one row."""
    return (dataset.target_scaling or Scaling()).inverse(values.double()).flatten()
