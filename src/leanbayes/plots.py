"""Pictures of predictions and weights, drawn on an axis of yours or on a new one.

Colors are those of Okabe and Ito, which color-blind readers can distinguish. Matplotlib is needed:
``pip install 'leanbayes[plots]'``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from leanbayes.analysis.spectrum import Spectrum
from leanbayes.errors import require
from leanbayes.metrics import Bins, Coverage, Rejection
from leanbayes.prediction.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["coverage", "densities", "entropies", "rejection", "reliability", "spectra", "style"]

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
PALE = "#BBBBBB"
DASHED: dict[str, Any] = {"color": "#666666", "linestyle": "--"}
_STYLES = ("-", "--", ":", "-.")
_ROUNDING = 1e-12


def reliability(bins: Bins, axes: Axes | None = None) -> Axes:
    """Plot accuracy over confidence, bin by bin, with its 95% interval and the share of examples.

    Below the diagonal a model is overconfident, above it underconfident.

    Args:
        bins: the result of ``prediction.calibration(y)`` for classes; empty bins are left out.
        axes: axes to draw on; a new figure by default.

    Returns:
        The axes.
    """
    axes = style(axes, "confidence", "accuracy")
    count = bins.examples
    left, share = [i / len(count) for i in range(len(count))], (count / count.sum()).tolist()
    axes.bar(left, share, 1 / len(count), align="edge", color=PALE, label="share of examples")
    axes.plot([0, 1], [0, 1], **DASHED, label="perfectly calibrated")
    filled = count > 0
    middle, accuracy = bins.confidence[filled], bins.accuracy[filled]
    low, high = (end[filled] for end in bins.interval)
    reach = torch.stack([accuracy - low, high - accuracy]).clamp_min(0)
    axes.errorbar(
        middle, accuracy, yerr=reach, fmt="o-", color=COLORS[0], capsize=2, label="this model"
    )
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    add_legend(axes, 3)
    return axes


def coverage(curve: Coverage, axes: Axes | None = None) -> Axes:
    """Plot observed over nominal coverage; gray is two standard errors of chance.

    Below the diagonal intervals are too narrow, above it too wide.

    Args:
        curve: the result of ``prediction.calibration(y)`` for numbers.
        axes: axes to draw on; a new figure by default.

    Returns:
        The axes.
    """
    axes = style(axes, "nominal level of the interval", "share of targets inside")
    level = torch.linspace(0, 1, 101)
    chance = 2 * (level * (1 - level) / curve.examples).sqrt()
    band = axes.fill_between(level, level - chance, level + chance, color=PALE)
    band.set(alpha=0.6, linewidth=0, label="calibrated, ± 2 s.e.")
    axes.plot([0, 1], [0, 1], **DASHED)
    axes.plot(curve.nominal, curve.observed, "o-", markersize=4, color=COLORS[0])
    axes.lines[-1].set_label("this model")
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    add_legend(axes, 2)
    return axes


def rejection(
    curves: Rejection | Mapping[str, Rejection],
    axes: Axes | None = None,
    *,
    of: str = "accuracy",
) -> Axes:
    """Plot the metric of what is left when the least certain examples are rejected.

    Args:
        curves: the result of ``prediction.rejection(y)``, or several of them by name.
        axes: axes to draw on; a new figure by default.
        of: averaged quantity: ``"accuracy"``, or an error.

    Returns:
        The axes.

    Raises:
        ValueError: If there are no curves.
    """
    named = {"this model": curves} if isinstance(curves, Rejection) else curves
    require(bool(named), "there are no curves to draw; give at least one")
    axes = style(axes, "share of examples rejected", f"{of} on the others")
    for index, (name, curve) in enumerate(named.items()):
        axes.plot(curve.rejected, curve.kept, **line_style(index, name))
    axes.set_xlim(0, 1)
    add_legend(axes, len(named))
    return axes


def entropies(groups: Mapping[str, Prediction | Tensor], axes: Axes | None = None) -> Axes:
    """Plot entropies of several groups of examples, such as test images and OOD images.

    Args:
        groups: predictions, or entropies in nats, by name.
        axes: axes to draw on; a new figure by default.

    Returns:
        The axes.
    """
    values = {n: g.entropy if isinstance(g, Prediction) else g for n, g in groups.items()}
    return densities(values, "entropy (nats)", axes)


def densities(
    groups: Mapping[str, Tensor], xlabel: str, axes: Axes | None = None, *, bins: int = 30
) -> Axes:
    """Plot outlined densities of several groups over common bins; what is not finite is left out.

    Args:
        groups: numbers, by name.
        xlabel: label of the numbers.
        axes: axes to draw on; a new figure by default.
        bins: number of bins.

    Returns:
        The axes.

    Raises:
        ValueError: If no number is finite.
    """
    finite = {name: g.flatten().float()[g.flatten().isfinite()] for name, g in groups.items()}
    require(
        any(len(g) for g in finite.values()), "no group has a finite number; there is none to draw"
    )
    axes = style(axes, xlabel, "density")
    low = min(float(g.min()) for g in finite.values() if len(g))
    high = max(float(g.max()) for g in finite.values() if len(g))
    width = max(high - low, 1e-6 * max(abs(low), 1.0))
    edges = [low + width * i / bins for i in range(bins + 1)]
    for index, (name, group) in enumerate(finite.items()):
        counts = torch.histc(group, bins, low, low + width)
        heights = (counts / (max(len(group), 1) * width / bins)).tolist()
        line = line_style(index, name)
        axes.stairs(heights, edges, linewidth=1.8, **line)
        if index < 3:
            axes.stairs(heights, edges, fill=True, alpha=0.15, color=line["color"])
    add_legend(axes, len(finite))
    return axes


def spectra(
    values: Mapping[str, Spectrum | Tensor],
    axes: Axes | None = None,
    *,
    of: Literal["scale", "mean"] = "scale",
) -> Axes:
    """Plot the share of the sum of squares that each singular value explains, by layer.

    Args:
        values: results of :func:`leanbayes.analysis.spectrum`, or shares ``[values]``, by name of
            the layer; members of a mixture are averaged.
        axes: axes to draw on; a new figure by default.
        of: whether to draw standard deviations or means.

    Returns:
        The axes.

    Raises:
        ValueError: If there are no spectra.
    """
    require(bool(values), "there are no spectra to draw; give lb.analysis.spectrum(model)")
    axes = style(axes, "index of the singular value", "share of the sum of squares")
    for index, (name, value) in enumerate(values.items()):
        shares = _shares(value, of)
        axes.plot(range(1, len(shares) + 1), shares, marker=".", **line_style(index, name))
    axes.set_yscale("log")
    whole_numbers(axes)
    add_legend(axes, len(values))
    return axes


def _shares(value: Spectrum | Tensor, of: str) -> Tensor:
    """Return shares that are not rounding, averaged over members."""
    if isinstance(value, Spectrum):
        value = value.scale if of == "scale" else value.mean
    average = value.reshape(-1, value.shape[-1]).mean(0)
    return average[average > _ROUNDING]


def style(axes: Axes | None, xlabel: str, ylabel: str) -> Axes:
    """Give axes the look of this module: its colors, labels, a pale grid and no frame.

    Args:
        axes: axes to change; ``None`` makes a new figure.
        xlabel: label of x.
        ylabel: label of y.

    Returns:
        The axes.
    """
    if axes is None:
        axes = _new_axes()
    axes.set(xlabel=xlabel, ylabel=ylabel, axisbelow=True)
    axes.set_prop_cycle(color=COLORS)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _new_axes() -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plots need matplotlib; run: pip install 'leanbayes[plots]'") from error
    _, axes = pyplot.subplots(figsize=(5.2, 3.6), layout="constrained")
    return axes


def whole_numbers(axes: Axes) -> None:
    """Let ticks of x be whole."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def line_style(index: int, name: str) -> dict[str, Any]:
    """Label and style of a line: colors first, then dashes, for 28 lines that differ."""
    rounds, color = divmod(index, len(COLORS))
    line = _STYLES[rounds % len(_STYLES)]
    return {"label": label_text(name), "color": COLORS[color], "linestyle": line}


def label_text(name: str) -> str:
    """Escape a label; matplotlib hides a leading underscore and typesets dollars."""
    return name.replace("$", r"\$").lstrip("_") or "layer"


def add_legend(axes: Axes, entries: int) -> None:
    """Add a legend if there are several entries."""
    if entries > 1:
        columns = 1 if entries <= 6 else 2
        axes.legend(fontsize="small", edgecolor="none", framealpha=0.85, ncols=columns)
