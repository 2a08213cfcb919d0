"""Plots as PNG bytes, in colours that colour-blind people can tell apart (Okabe and Ito)."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes import plots as draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from leanbayes.analysis.spectrum import Spectrum

COLOURS, DASHED, PALE = draw.COLOURS, draw.DASHED, draw.PALE
WRONG = COLOURS[1]
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
    """What a function of :mod:`leanbayes.plots` draws."""
    figure = _figure()
    function(*values, axes=figure.add_subplot(), **options)
    return _png(figure)


def side_by_side(panels: Mapping[str, Callable[[Axes], object]]) -> bytes:
    """What functions draw, one after another on axes with a common height, under their names."""
    width, height = _SIZE
    figure = _figure((0.8 * width * len(panels), height))
    first = None
    for place, (title, function) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), place, sharey=first)
        function(axes)
        axes.set_title(draw.label_text(title))
        first = first or axes
    return _png(figure)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
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
    """Several lines over the same x; values that are not finite are left out."""
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


def paths(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    xlabel: str,
    ylabel: str,
    *,
    log: bool = False,
) -> bytes:
    """Several lines, each over an x of its own."""
    figure, axes = _axes(xlabel, ylabel)
    for index, (name, (x, y)) in enumerate(lines.items()):
        axes.plot(x, y, **draw.line_style(index, name))
    if log:
        axes.set_yscale("log")
    draw.add_legend(axes, len(lines))
    return _png(figure)


def histograms(groups: Mapping[str, Tensor], xlabel: str, *, bins: int = 30) -> bytes:
    """Outlined densities of several groups over common bins."""
    return png(draw.densities, groups, xlabel, bins=bins)


def bars(values: Mapping[str, float], xlabel: str) -> bytes:
    """One horizontal bar for each name."""
    figure, axes = _axes(xlabel, "")
    names = [draw.label_text(name) for name in values]
    axes.barh(range(len(names)), list(values.values()), color=COLOURS[0])
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    return _png(figure)


def clouds(panels: Mapping[str, Mapping[str, Tensor]], xlabel: str, ylabel: str) -> bytes:
    """Points of several groups, a panel for each title, on axes that show small and large alike.

    An axis is linear up to the smallest spread of a group, and logarithmic beyond.
    """
    figure = _figure((0.85 * _SIZE[0] * len(panels), _SIZE[1]))
    for column, (title, groups) in enumerate(panels.items(), 1):
        axes = _on(figure, xlabel, ylabel if column == 1 else "", (1, len(panels), column))
        least = torch.stack([points.std(0) for points in groups.values()]).amin(0)
        for index, (name, points) in enumerate(groups.items()):
            colour = COLOURS[index % len(COLOURS)]
            label = draw.label_text(name)
            axes.scatter(
                points[:, 0], points[:, 1], s=8, alpha=0.5, linewidth=0, color=colour, label=label
            )
        axes.set_xscale("asinh", linear_width=max(float(least[0]), 1e-9))
        axes.set_yscale("asinh", linear_width=max(float(least[1]), 1e-9))
        axes.tick_params("x", labelrotation=60)
        axes.set_title(title)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", edgecolor="none")
    return _png(figure)


def heat_map(matrix: Tensor, label: str) -> bytes:
    """A matrix in colours; one with many rows or columns is averaged over blocks."""
    rows, columns = matrix.shape
    size = (min(rows, _PIXELS), min(columns, _PIXELS))
    shown = F.adaptive_avg_pool2d(matrix[None, None].float(), size)[0, 0].numpy()
    figure = _figure()
    axes = figure.add_subplot()
    axes.set(xlabel="input", ylabel="output")
    picture = axes.imshow(
        shown, "cividis", aspect="auto", interpolation="nearest", extent=(0, columns, rows, 0)
    )
    figure.colorbar(picture, ax=axes, label=label)
    return _png(figure)


def spectra_of(values: Mapping[str, Spectrum | Tensor]) -> bytes:
    """Spectra of standard deviations and of means, side by side on one scale."""
    figure = _figure((2 * _SIZE[0], _SIZE[1]))
    left, right = (figure.add_subplot(1, 2, place) for place in (1, 2))
    draw.spectra(values, left, of="scale").set_title("standard deviations")
    draw.spectra(values, right, of="mean").set(title="means", ylabel="")
    if (repeated := left.get_legend()) is not None:
        repeated.remove()
    lowest = min(a.get_ylim()[0] for a in (left, right))
    for axes in (left, right):
        axes.set_ylim(lowest, 2)
    return _png(figure)


def image_grid(images: Tensor, titles: Sequence[str], wrong: Sequence[bool]) -> bytes:
    """Small images with a title each; where the prediction is wrong, the title is in red."""
    columns = min(4, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = _figure((1.35 * columns, 1.57 * rows))
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))  # one for all: making many is slow
    axes.set_axis_off()
    for place, (image, title, bad) in enumerate(zip(images, titles, wrong, strict=True)):
        top, left = 1.24 * (place // columns), 1.07 * (place % columns)
        pixels = image[0] if image.shape[0] == 1 else image.permute(1, 2, 0)
        extent = (left, left + 1, top + 1, top)  # grey and its limits have no effect on colours
        axes.imshow(pixels.numpy(), "gray", vmin=0, vmax=1, interpolation="nearest", extent=extent)
        text = axes.text(left + 0.5, top - 0.04, title.replace("$", r"\$"), fontsize=8)
        text.set(ha="center", color=WRONG if bad else "black", weight="bold" if bad else "normal")
    axes.set(xlim=(-0.035, 1.07 * columns - 0.035), ylim=(1.24 * rows - 0.2, -0.24))
    return _png(figure)


def estimates(
    values: Mapping[str, tuple[float, float]], xlabel: str, *, zero: bool = False
) -> bytes:
    """One dot for each name, with an error to both sides; a line at zero, if asked for."""
    figure = _figure((_SIZE[0], max(_SIZE[1], 0.22 * len(values) + 0.6)))
    axes, rows = _on(figure, xlabel, ""), range(len(values))
    middle, error = zip(*values.values(), strict=True)
    if zero:
        axes.axvline(0.0, **DASHED)
    axes.errorbar(
        middle, rows, xerr=error, fmt="o", markersize=4, color=COLOURS[0], ecolor=COLOURS[4]
    )
    axes.set_yticks(rows, [draw.label_text(name) for name in values], fontsize="small")
    axes.invert_yaxis()
    return _png(figure)


def intervals(truth: Tensor, mean: Tensor, low: Tensor, high: Tensor) -> bytes:
    """Predictions over the truth, each with its interval; on the diagonal they are right."""
    figure, axes = _axes("true", "predicted")
    ends = [float(torch.cat([truth, mean]).min()), float(torch.cat([truth, mean]).max())]
    axes.plot(ends, ends, **DASHED, label="perfect prediction")
    inside = (low <= truth) & (truth <= high)
    for held, label, colour in (
        (inside, "the interval holds the truth", COLOURS[0]),
        (~inside, "it does not", WRONG),
    ):
        if bool(held.any()):
            axes.vlines(truth[held], low[held], high[held], color=colour, alpha=0.45, linewidth=1)
            marker = "o" if held is inside else "X"
            axes.scatter(truth[held], mean[held], s=12, color=colour, marker=marker, label=label)
    draw.add_legend(axes, 3)
    return _png(figure)


def errors(spread: Tensor, error: Tensor, groups: int = 10) -> bytes:
    """Absolute errors over predicted standard deviations, and the root mean square by group."""
    figure, axes = _axes("predicted standard deviation", "absolute error")
    axes.scatter(spread, error, s=12, color=COLOURS[4], alpha=0.6, linewidth=0, label="targets")
    order = spread.argsort()
    parts = order.tensor_split(max(1, min(groups, len(order) // 5)))
    x, y = ([float(v[part].square().mean().sqrt()) for part in parts] for v in (spread, error))
    axes.plot(x, y, marker="o", color=COLOURS[1], label="root mean square")
    ends = [float(spread.min()), float(spread.max())]
    axes.plot(ends, ends, **DASHED, label="as predicted")
    axes.set_ylim(bottom=0)
    draw.add_legend(axes, 3)
    return _png(figure)
