"""Pictures of sparse networks, from files alone, as PNG bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from leanbayes.lab.plots import _figure, _on, _png
from leanbayes.plots import add_legend, line_style, whole_numbers
from research.papers.matrix_normal.sparse.files import Study

if TYPE_CHECKING:
    from matplotlib.axis import Axis

History = Mapping[str, Sequence[float | None]]
_PANELS = {
    "test/accuracy": "test accuracy, %",
    "test/negative_elbo": "−ELBO of a test example",
    "left/weights": "weights with log α < 3, %",
}
_SHARES = ("test/accuracy", "left/weights")
_WIDE = (12.6, 3.6)


def draw_curves(named: Mapping[str, Sequence[History]]) -> bytes:
    """Return accuracy, bound and what is left over epochs [matrix normal, Figures 1 to 5]."""
    figure = _figure(_WIDE)
    for place, (column, label) in enumerate(_PANELS.items(), 1):
        axes = _on(figure, "epoch", label, (1, len(_PANELS), place))
        scale = 100.0 if column in _SHARES else 1.0
        for index, (name, histories) in enumerate(named.items()):
            epochs, seeds = _together(histories, column, scale)
            look = line_style(index, name)
            marker = "o" if len(epochs) < 3 else ""
            axes.plot(epochs, [sum(at) / len(at) for at in seeds], marker=marker, **look)
            if len(histories) > 1:
                lows, highs = [min(at) for at in seeds], [max(at) for at in seeds]
                axes.fill_between(epochs, lows, highs, alpha=0.12, color=look["color"], linewidth=0)
        if column not in _SHARES:
            axes.set_yscale("log")
            _plain_numbers(axes.yaxis, (1, 1.5, 2, 3, 4, 5, 6, 8))
        whole_numbers(axes)
    add_legend(axes, len(named))
    return _png(figure)


def _together(
    histories: Sequence[History], column: str, scale: float
) -> tuple[list[float], list[list[float]]]:
    """Return epochs, counted from one, that all seeds have, and the values of the seeds at each."""
    length = min(len(history["epoch"]) for history in histories)
    epochs, values = [], []
    for i in range(length):
        at = [history[column][i] for history in histories]
        known = [scale * value for value in at if value is not None and math.isfinite(value)]
        epoch = histories[0]["epoch"][i]
        if len(known) == len(at) and epoch is not None:
            epochs.append(epoch + 1)
            values.append(known)
    return epochs, values


def draw_sweep(named: Mapping[str, Sequence[Study]]) -> bytes:
    """Return test error over the weights that are left, a point for every threshold."""
    figure = _figure()
    axes = _on(figure, "weights left, %", "test error after zeroing, %")
    for index, (name, studies) in enumerate(named.items()):
        points = zip(*(study["sweep"] for study in studies), strict=True)
        line = [
            (
                100 * sum(p["weights"][0] / p["weights"][1] for p in at) / len(at),
                100 * (1 - sum(p["accuracy"]["value"] for p in at) / len(at)),
            )
            for at in points
            if all("accuracy" in p for p in at)
        ]
        if line:
            axes.plot(*zip(*line, strict=True), marker="o", markersize=4, **line_style(index, name))
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        _plain_numbers(axis, (1, 2, 5))
    add_legend(axes, len(named))
    return _png(figure)


def _plain_numbers(axis: Axis, first_digits: tuple[float, ...]) -> None:
    """Label a logarithmic axis with numbers as they are written, not with powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=first_digits))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
