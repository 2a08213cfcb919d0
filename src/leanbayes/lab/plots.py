"""Plots as PNG bytes, in colours that colour-blind people can tell apart (Okabe and Ito)."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "bars",
    "curves",
    "heat_map",
    "histograms",
    "image_grid",
    "rejection",
    "reliability",
    "spectra",
]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLES = ("-", "--", ":", "-.")
WRONG = "#D55E00"
GREY = "#666666"
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
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def _look(index: int) -> dict[str, Any]:
    """Colours first, then other line styles: 28 lines that differ."""
    rounds, colour = divmod(index, len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": STYLES[rounds % len(STYLES)]}


def _legend(axes: Axes, entries: int) -> None:
    if entries > 1:
        axes.legend(fontsize="small", frameon=False, ncols=1 if entries <= 6 else 2)


def curves(
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    ylabel: str,
    *,
    xlabel: str = "epoch",
    log: bool = False,
) -> bytes:
    """Several lines over the same x; values that are not finite are left out.

    Args:
        x: where the values are.
        lines: the values of every line, by its name.
        ylabel: what they are.
        xlabel: what x is.
        log: a logarithmic axis, if all values are positive.
    """
    figure, axes = _axes(xlabel, ylabel)
    finite = [v for line in lines.values() for v in line if math.isfinite(v)]
    for index, (name, line) in enumerate(lines.items()):
        points = [(a, b) for a, b in zip(x, line, strict=True) if math.isfinite(b)]
        marker = "o" if len(points) < 3 else ""
        axes.plot(
            [a for a, _ in points],
            [b for _, b in points],
            marker=marker,
            label=_plain(name),
            **_look(index),
        )
    if log and finite and min(finite) > 0:
        axes.set_yscale("log")
    _whole_numbers(axes)
    _legend(axes, len(lines))
    return _png(figure)


def _plain(name: str) -> str:
    """A label as it is written: matplotlib hides a leading underscore and typesets dollars."""
    return name.replace("$", r"\$").lstrip("_") or "layer"


def reliability(confidence: Tensor, accuracy: Tensor, count: Tensor) -> bytes:
    """Accuracy over confidence, bin by bin, with the share of examples in each bin.

    Args:
        confidence: average confidence of every bin.
        accuracy: average accuracy of every bin.
        count: how many examples are in it; empty bins are left out.
    """
    figure, axes = _axes("confidence", "accuracy")
    bins = len(count)
    share = (count / count.sum()).tolist()
    left = [i / bins for i in range(bins)]
    axes.bar(
        left, share, 1 / bins, align="edge", color="#BBBBBB", label="share of examples", zorder=1
    )
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", label="perfectly calibrated")
    filled = count > 0
    axes.plot(
        confidence[filled].tolist(),
        accuracy[filled].tolist(),
        marker="o",
        color=COLOURS[0],
        label="this model",
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    _legend(axes, 3)
    return _png(figure)


def rejection(rejected: Tensor, accuracy: Tensor) -> bytes:
    """Accuracy on what is kept, when the least certain examples are rejected."""
    figure, axes = _axes("share of examples rejected", "accuracy on the others")
    axes.plot(rejected.tolist(), accuracy.tolist(), color=COLOURS[0])
    axes.set_xlim(0, 1)
    return _png(figure)


def histograms(groups: Mapping[str, Tensor], xlabel: str, *, bins: int = 30) -> bytes:
    """Outlined densities of several groups over common bins."""
    figure, axes = _axes(xlabel, "density")
    groups = {name: g.flatten().float()[g.flatten().isfinite()] for name, g in groups.items()}
    low = min(float(g.min()) for g in groups.values() if len(g))
    high = max(float(g.max()) for g in groups.values() if len(g))
    width = max(high - low, 1e-6 * max(abs(low), 1.0))
    edges = [low + width * i / bins for i in range(bins + 1)]
    for index, (name, group) in enumerate(groups.items()):
        counts = torch.histc(group, bins, low, low + width)
        heights = (counts / (max(len(group), 1) * width / bins)).tolist()
        look = _look(index)
        axes.stairs(heights, edges, label=_plain(name), linewidth=1.8, **look)
        if index < 3:
            axes.stairs(heights, edges, fill=True, alpha=0.15, color=look["color"])
    _legend(axes, len(groups))
    return _png(figure)


def bars(values: Mapping[str, float], xlabel: str) -> bytes:
    """One horizontal bar for each name."""
    figure, axes = _axes(xlabel, "")
    names = [_plain(name) for name in values]
    axes.barh(range(len(names)), list(values.values()), color=COLOURS[0])
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    return _png(figure)


def heat_map(matrix: Tensor, label: str) -> bytes:
    """A matrix in colours; one with many rows or columns is averaged over blocks.

    Args:
        matrix: ``[rows, columns]``.
        label: what its numbers are.
    """
    rows, columns = matrix.shape
    size = (min(rows, _PIXELS), min(columns, _PIXELS))
    shown = F.adaptive_avg_pool2d(matrix[None, None].float(), size)[0, 0]
    figure = _figure()
    axes = figure.add_subplot()
    picture = axes.imshow(
        shown.numpy(),
        cmap="cividis",
        aspect="auto",
        interpolation="nearest",
        extent=(0, columns, rows, 0),
    )
    axes.set_xlabel("input")
    axes.set_ylabel("output")
    figure.colorbar(picture, ax=axes, label=label)
    return _png(figure)


def spectra(values: Mapping[str, Tensor]) -> bytes:
    """The share of the sum of squares that each singular value explains, by layer."""
    figure, axes = _axes("index of the singular value", "share of the sum of squares")
    for index, (name, shares) in enumerate(values.items()):
        kept = shares[shares > 0]
        x = list(range(1, len(kept) + 1))
        axes.plot(x, kept.tolist(), marker=".", label=_plain(name), **_look(index))
    axes.set_yscale("log")
    _whole_numbers(axes)
    _legend(axes, len(values))
    return _png(figure)


def image_grid(images: Tensor, titles: Sequence[str], wrong: Sequence[bool]) -> bytes:
    """Small images with a title each; where the prediction is wrong, the title is in red.

    Args:
        images: ``[images, channels, rows, columns]`` between 0 and 1, with 1 or 3 channels.
        titles: what stands over each.
        wrong: which titles to mark.
    """
    columns = min(4, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = _figure((1.35 * columns, 1.6 * rows))
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, image, title, bad in zip(grid.flat, images, titles, wrong, strict=False):
        if image.shape[0] == 1:
            axes.imshow(image[0].numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        else:
            axes.imshow(image.permute(1, 2, 0).numpy(), interpolation="nearest")
        axes.set_title(
            title.replace("$", r"\$"),
            fontsize=8,
            color=WRONG if bad else "black",
            fontweight="bold" if bad else "normal",
        )
    return _png(figure)
