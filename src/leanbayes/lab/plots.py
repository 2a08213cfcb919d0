"""Plots as PNG bytes, in colors that color-blind readers can distinguish (Okabe and Ito)."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes import plots as draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLORS, DASHED, PALE = draw.COLORS, draw.DASHED, draw.PALE
WRONG = COLORS[1]
_SIZE = (5.2, 3.6)
_PIXELS = 256
_DOTS_PER_INCH = 144


def _figure(size: tuple[float, float] = _SIZE) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib; run: pip install 'leanbayes[lab]'") from error
    return Figure(figsize=size, layout="constrained")


def _axes(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = _figure()
    return figure, _on(figure, xlabel, ylabel)


def _on(figure: Figure, xlabel: str, ylabel: str, place: tuple[int, int, int] = (1, 1, 1)) -> Axes:
    return draw.style(figure.add_subplot(*place), xlabel, ylabel)


def png(function: Callable[..., Axes], *values: Any, **options: Any) -> bytes:
    """Return what a function of :mod:`leanbayes.plots` draws."""
    figure = _figure()
    function(*values, axes=figure.add_subplot(), **options)
    return _png(figure)


_VECTOR = ContextVar("vector", default=False)


@contextmanager
def vector() -> Iterator[None]:
    """Draw SVG instead of PNG for the length of a block, except pictures of pixels."""
    token = _VECTOR.set(True)
    try:
        yield
    finally:
        _VECTOR.reset(token)


def _png(figure: Figure) -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    if _VECTOR.get() and not any(axes.images for axes in figure.axes):
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "leanbayes"}):
            figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    else:
        figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def curves(
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    ylabel: str,
    *,
    xlabel: str = "epoch",
    log: bool = False,
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
) -> bytes:
    """Return several lines over the same x; values that are not finite are left out."""
    figure, axes = _axes(xlabel, ylabel)
    finite = [v for line in lines.values() for v in line if math.isfinite(v)]
    for index, (name, line) in enumerate(lines.items()):
        points = [(a, b) for a, b in zip(x, line, strict=True) if math.isfinite(b)]
        style, marker = draw.line_style(index, name), "o" if len(points) < 3 else ""
        axes.plot([a for a, _ in points], [b for _, b in points], marker=marker, **style)
        if bands and name in bands:
            axes.fill_between(x, *bands[name], alpha=0.12, color=style["color"], linewidth=0)
    if log and finite and min(finite) > 0:
        axes.set_yscale("log")
    draw.whole_numbers(axes)
    draw.add_legend(axes, len(lines))
    return _png(figure)


def histograms(groups: Mapping[str, Tensor], xlabel: str, *, bins: int = 30) -> bytes:
    """Return outlined densities of several groups over common bins."""
    return png(draw.densities, groups, xlabel, bins=bins)


def bars(values: Mapping[str, float], xlabel: str) -> bytes:
    """Return one horizontal bar for each name."""
    figure, axes = _axes(xlabel, "")
    names = [draw.label_text(name) for name in values]
    axes.barh(range(len(names)), list(values.values()), color=COLORS[0])
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    return _png(figure)


def heat_map(matrix: Tensor, label: str, limits: tuple[float, float] | None = None) -> bytes:
    """Return a matrix in colors; one with many rows or columns is averaged over blocks."""
    rows, columns = matrix.shape
    size = (min(rows, _PIXELS), min(columns, _PIXELS))
    shown = F.adaptive_avg_pool2d(matrix[None, None].float(), size)[0, 0].numpy()
    figure = _figure()
    axes = figure.add_subplot()
    axes.set(xlabel="input", ylabel="output")
    picture = axes.imshow(
        shown, "cividis", aspect="auto", interpolation="nearest", extent=(0, columns, rows, 0)
    )
    if limits is not None:
        picture.set_clim(*limits)
    figure.colorbar(picture, ax=axes, label=label)
    return _png(figure)


def image_grid(images: Tensor, titles: Sequence[str], wrong: Sequence[bool]) -> bytes:
    """Return small images with a title each; where the prediction is wrong, the title is in red."""
    columns = min(4, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = _figure((1.35 * columns, 1.57 * rows))
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))  # one for all: making many is slow
    axes.set_axis_off()
    for place, (image, title, bad) in enumerate(zip(images, titles, wrong, strict=True)):
        top, left = 1.24 * (place // columns), 1.07 * (place % columns)
        pixels = image[0] if image.shape[0] == 1 else image.permute(1, 2, 0)
        extent = (left, left + 1, top + 1, top)  # gray and its limits have no effect on colors
        axes.imshow(pixels.numpy(), "gray", vmin=0, vmax=1, interpolation="nearest", extent=extent)
        text = axes.text(left + 0.5, top - 0.04, title.replace("$", r"\$"), fontsize=8)
        text.set(ha="center", color=WRONG if bad else "black", weight="bold" if bad else "normal")
    axes.set(xlim=(-0.035, 1.07 * columns - 0.035), ylim=(1.24 * rows - 0.2, -0.24))
    return _png(figure)


def estimates(
    values: Mapping[str, tuple[float, float]], xlabel: str, *, reference: float, most: bool = False
) -> bytes:
    """Return one dot for each name, the best (the least or ``most``) on top, and a reference."""
    values = dict(sorted(values.items(), key=lambda item: item[1][0], reverse=most))
    figure = _figure((_SIZE[0], max(2.2, 0.22 * len(values) + 0.6)))
    axes, rows = _on(figure, xlabel, ""), range(len(values))
    middle, error = zip(*values.values(), strict=True)
    axes.axvline(reference, **DASHED)
    axes.errorbar(
        middle, rows, xerr=error, fmt="o", markersize=4, color=COLORS[0], ecolor=COLORS[4]
    )
    names = [draw.label_text(name) for name in values]
    axes.set(yticks=rows, yticklabels=names, ylim=(len(rows) - 0.5, -0.5))
    axes.locator_params(axis="x", nbins=6)
    return _png(figure)


def intervals(truth: Tensor, mean: Tensor, low: Tensor, high: Tensor) -> bytes:
    """Return predictions over the truth, each with its interval; on the diagonal they are right."""
    figure, axes = _axes("true", "predicted")
    ends = [float(torch.cat([truth, mean]).min()), float(torch.cat([truth, mean]).max())]
    axes.plot(ends, ends, **DASHED, label="perfect prediction")
    inside = (low <= truth) & (truth <= high)
    for held, label, color in (
        (inside, "the interval holds the truth", COLORS[0]),
        (~inside, "it does not", WRONG),
    ):
        if bool(held.any()):
            axes.vlines(truth[held], low[held], high[held], color=color, alpha=0.45, linewidth=1)
            marker = "o" if held is inside else "X"
            axes.scatter(truth[held], mean[held], s=12, color=color, marker=marker, label=label)
    draw.add_legend(axes, 3)
    return _png(figure)


def errors(spread: Tensor, error: Tensor, groups: int = 10) -> bytes:
    """Absolute errors over predicted standard deviations, and the root mean square by group."""
    figure, axes = _axes("predicted standard deviation", "absolute error")
    axes.scatter(spread, error, s=12, color=COLORS[4], alpha=0.6, linewidth=0, label="targets")
    order = spread.argsort()
    parts = order.tensor_split(max(1, min(groups, len(order) // 5)))
    x, y = ([float(v[part].square().mean().sqrt()) for part in parts] for v in (spread, error))
    axes.plot(x, y, marker="o", color=COLORS[1], label="root mean square")
    ends = [float(spread.min()), float(spread.max())]
    axes.plot(ends, ends, **DASHED, label="as predicted")
    axes.set_ylim(bottom=0)
    draw.add_legend(axes, 3)
    return _png(figure)
