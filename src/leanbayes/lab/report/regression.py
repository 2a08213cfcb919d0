"""The section of a run that predicts numbers: intervals, their coverage, and where errors are."""

from torch import Tensor

from leanbayes import plots as draw
from leanbayes.lab import plots
from leanbayes.lab.data import Dataset, Scaling
from leanbayes.lab.report.html import Html, figure, grid, section
from leanbayes.lab.report.numbers import number
from leanbayes.lab.report.study import Study, register_section
from leanbayes.lab.runs import Run
from leanbayes.metrics import Coverage
from leanbayes.prediction.predict import Prediction

_INTERVAL = 0.9
_MOST_POINTS = 200
_MOST_DOTS = 2000
_UNITS = "in the units of the raw targets"


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
    low, high = (_raw(end, dataset) for end in shown.interval(_INTERVAL))
    truth, mean = _raw(y[few], dataset), _raw(shown.mean, dataset)
    return figure(
        plots.intervals(truth, mean, low, high),
        f"Predicted mean and {_INTERVAL:.0%} interval over the truth, for {len(truth)} test "
        f"targets, {_UNITS}.",
    )


def _coverage(test: Prediction, y: Tensor) -> Html:
    curve = test.calibration(y)
    assert isinstance(curve, Coverage)
    held = float(curve.observed[(curve.nominal - _INTERVAL).abs().argmin()])
    return figure(
        plots.png(draw.coverage, curve),
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
    """Return numbers in the units of the raw targets, one row."""
    return (dataset.target_scaling or Scaling()).inverse(values.double()).flatten()
