"""Plots of the papers' pages as PNG bytes."""

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from leanbayes import plots as draw
from leanbayes.analysis.spectrum import Spectrum
from leanbayes.lab.plots import _SIZE, COLORS, _axes, _figure, _on, _png


def one_panel(title: str, draw_on: Callable[[Axes], object]) -> bytes:
    """What a function draws, under a title."""
    width, height = _SIZE
    figure = _figure((0.8 * width, height))
    axes = figure.add_subplot(1, 1, 1)
    draw_on(axes)
    axes.set_title(draw.label_text(title))
    return _png(figure)


def _legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """Add a legend under a figure, where it covers no curve."""
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        edgecolor="none",
        fontsize="small",
        ncols=columns,
    )


def paths(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    xlabel: str,
    ylabel: str,
    *,
    log: bool = False,
) -> bytes:
    """Return several lines, each over an x of its own."""
    figure, axes = _axes(xlabel, ylabel)
    for index, (name, (x, y)) in enumerate(lines.items()):
        axes.plot(x, y, **draw.line_style(index, name))
    if log:
        axes.set_yscale("log")
    if len(lines) > 4:
        _legend_below(figure, axes, columns=2)
    else:
        draw.add_legend(axes, len(lines))
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
            color = COLORS[index % len(COLORS)]
            label = draw.label_text(name)
            axes.scatter(
                points[:, 0], points[:, 1], s=8, alpha=0.5, linewidth=0, color=color, label=label
            )
        axes.set_xscale("asinh", linear_width=max(float(least[0]), 1e-9))
        axes.set_yscale("asinh", linear_width=max(float(least[1]), 1e-9))
        axes.tick_params("x", labelrotation=60)
        axes.set_title(title)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", edgecolor="none")
    return _png(figure)


_WEIGHTS = {
    "lstm.maps.weight_ih_l0": "weights of the input",
    "lstm.maps.weight_hh_l0": "weights of the hidden state",
}


def _one_color_per_block(axes: Axes, layers: Sequence[str]) -> None:
    """Draw layers of one block alike, with one label in words."""
    blocks = [_WEIGHTS.get(name, re.sub(r"(\d+)$", r" \1", name.split(".")[0])) for name in layers]
    known = list(dict.fromkeys(blocks))
    for place, (line, block) in enumerate(zip(axes.lines, blocks, strict=True)):
        first = blocks.index(block) == place
        line.set(**draw.line_style(known.index(block), block))
        if not first:
            line.set_label("_")


def spectra_of(values: Mapping[str, Spectrum | Tensor]) -> bytes:
    """Return spectra of standard deviations and of means, side by side on one scale."""
    figure = _figure((2 * _SIZE[0], _SIZE[1]))
    left, right = (figure.add_subplot(1, 2, place) for place in (1, 2))
    draw.spectra(values, left, of="scale").set_title("standard deviations")
    draw.spectra(values, right, of="mean").set(title="means", ylabel="")
    for axes in (left, right):
        _one_color_per_block(axes, list(values))
    if len(values) > 1:
        _legend_below(figure, left, columns=7)
    lowest = min(a.get_ylim()[0] for a in (left, right))
    for axes in (left, right):
        axes.set_ylim(lowest, 2)
        if (covering := axes.get_legend()) is not None:
            covering.remove()
    return _png(figure)
