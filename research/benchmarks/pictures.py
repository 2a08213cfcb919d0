"""The pictures of docs/performance.md, as PNG."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leanbayes.plots import COLORS, PALE
from research.benchmarks.networks import network_title, whole_title
from research.benchmarks.peers import PACKAGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "os^Dv"


def figure_of(width: float, height: float) -> Figure:
    """Return an empty figure, in inches."""
    from matplotlib.figure import Figure  # the peers' environment has none

    return Figure(figsize=(width, height), layout="constrained")


def png_of(figure: Figure) -> bytes:
    """Return a figure as the content of a file, the same for the same picture."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()


def methods(
    name: str, title: Callable[[str], str]
) -> Callable[[Mapping[str, Any]], dict[str, bytes]]:
    """Return bars of medians with their quartiles, ours and peers, one panel per network."""

    def draw(result: Mapping[str, Any]) -> dict[str, bytes]:
        setups = list(result["branches"]["native"]["setups"])
        figure = figure_of(3.6 * len(setups) + 1.4, 4.4)
        for axes, setup in zip(
            figure.subplots(1, len(setups), squeeze=False)[0], setups, strict=True
        ):
            _bars(axes, result, setup)
            axes.set_title(title(setup), fontsize=9)
        return {name: png_of(figure)}

    return draw


def _bars(axes: Axes, result: Mapping[str, Any], setup: str) -> None:
    ours = dict(result["branches"]["native"]["setups"][setup])
    others = result["branches"].get("peers", {}).get("setups", {}).get(setup, {})
    both = {**ours, **{name: cost for name, cost in others.items() if name in PACKAGES}}
    order = sorted(both, key=lambda method: -both[method]["median"])
    medians = [both[method]["median"] for method in order]
    spread = [
        [m - both[o]["low"] for m, o in zip(medians, order, strict=True)],
        [both[o]["high"] - m for m, o in zip(medians, order, strict=True)],
    ]
    colors = [COLORS[1] if method in PACKAGES else COLORS[0] for method in order]
    axes.barh(order, medians, xerr=spread, color=colors, error_kw={"ecolor": "#444444"})
    axes.axvline(1, color=PALE, linestyle="--")
    axes.set_xlabel("× plain network (orange: peers)", fontsize=8)
    axes.tick_params(labelsize=8)


def memory_and_cost(result: Mapping[str, Any]) -> dict[str, bytes]:
    """Return cost and memory against size, one panel a thing that grows."""
    axes = result["branches"]["native"]["axes"]
    kinds = {
        "scale": ("growth", "cost, in steps of a small network"),
        "memory": ("megabytes", "MB"),
    }
    return {name: png_of(_panels(axes, key, label)) for name, (key, label) in kinds.items()}


def _panels(axes: Mapping[str, Any], key: str, label: str) -> Figure:
    from matplotlib.ticker import LogLocator

    columns = 3
    rows = -(-len(axes) // columns)
    figure = figure_of(3.5 * columns, 2.9 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel, axis in zip(panels, axes.values(), strict=False):
        for number, method in enumerate(axis["points"][0][key]):
            values = [point[key][method] for point in axis["points"]]
            color = "#000000" if method == "plain" else COLORS[number - 1]
            named = method
            if key == "growth":
                named = f"{method} (exponent {axis['exponents'][method]:.2f})"
            panel.loglog(axis["sizes"], values, marker=MARKERS[number], color=color, label=named)
        panel.set_xticks(axis["sizes"], [str(size) for size in axis["sizes"]])
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.set_xlabel(axis["title"], fontsize=8)
        panel.set_ylabel(label, fontsize=8)
        panel.tick_params(labelsize=7)
        panel.legend(fontsize=7, framealpha=0.5)
    for panel in panels:
        panel.set_axis_off()
    return figure


PICTURES: dict[str, Callable[[Mapping[str, Any]], dict[str, bytes]]] = {
    "step": methods("step", whole_title),
    "prediction": methods("prediction", network_title),
    "scale": memory_and_cost,
}
