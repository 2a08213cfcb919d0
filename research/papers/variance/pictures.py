"""Pictures of a study, from its file alone, as PNG bytes."""

from collections.abc import Mapping, Sequence
from typing import Any

from leanbayes.lab.plots import COLORS, DASHED, _figure, _on, _png
from leanbayes.plots import add_legend, line_style

Study = Mapping[str, Any]

_WIDE = (10.4, 3.6)
_LEAST = 1e-4
_CLASSES = (*COLORS[:6], "#882255", "#999933", "#44AA99", "#000000")
_PHASES = {
    "accuracy/mean": "means",
    "accuracy/sample": "one sample",
    "accuracy/ensemble": "averaged samples",
    "accuracy/zero_mean": "averaged, without means",
}


def draw_histogram(study: Study) -> bytes:
    """Return accuracies of single samples, and of all averaged [variance, Figure 4]."""
    figure = _figure(_WIDE)
    titles = {"weights": "one draw of the weights for all images", "images": "noise for each image"}
    for place, (kind, title) in enumerate(titles.items(), 1):
        drawn = study["histogram"][kind]
        axes = _on(figure, "test accuracy", "draws" if place == 1 else "", (1, 2, place))
        edges = [drawn["start"] + drawn["width"] * i for i in range(len(drawn["counts"]) + 1)]
        axes.stairs(drawn["counts"], edges, fill=True, color=COLORS[4], label="single draws")
        whole = f"{drawn['draws']} draws averaged"
        axes.axvline(drawn["ensemble"]["value"], color=COLORS[1], label=whole)
        axes.set_ylim(top=1.3 * max(drawn["counts"]))
        ends = (edges[0], edges[-1], drawn["ensemble"]["value"])
        axes.set_xlim(min(ends) - drawn["width"], max(ends) + drawn["width"])
        axes.set_title(title, fontsize="medium")
        add_legend(axes, 2)
    return _png(figure)


def draw_pruning(studies: Mapping[str, Study]) -> bytes:
    """Return error rates over the share of weights that is kept, pruned by σ and by |μ| / σ."""
    figure = _figure(_WIDE)
    for place, (by, title) in enumerate({"scale": "by σ", "snr": "by |μ| / σ"}.items(), 1):
        label = "error of averaged samples, %" if place == 1 else ""
        axes = _on(figure, "share of weights that is kept", label, (1, 2, place))
        for index, (name, study) in enumerate(studies.items()):
            points = study["pruning"][by]
            kept, wrong, error = zip(
                *((p["kept"], 100 * (1 - p["value"]), 100 * p["error"]) for p in points),
                strict=True,
            )
            axes.errorbar(
                kept, wrong, yerr=error, marker="o", markersize=4, **line_style(index, name)
            )
        axes.set_yscale("log")
        axes.set_xscale("log")
        axes.invert_xaxis()
        axes.set_xticks(kept, [f"{100 * share:.3g}%" for share in kept], fontsize="small")
        axes.xaxis.minorticks_off()
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(f"pruned {title}", fontsize="medium")
    add_legend(axes, len(studies))
    return _png(figure)


def draw_densities(study: Study) -> bytes:
    """Densities of single neurons, averaged over the images of every class [variance, Figure 9]."""
    neurons = study["densities"]["neurons"]
    columns = 2 if len(neurons) > 1 else 1
    rows = -(-len(neurons) // columns)
    figure = _figure((5.2 * columns, 3.2 * rows))
    for place, (number, neuron) in enumerate(neurons.items(), 1):
        axes = _on(figure, f"output of neuron {number}", "density", (rows, columns, place))
        floor = _LEAST * max(map(max, neuron["density"]))
        for index, line in enumerate(neuron["density"]):
            color = _CLASSES[index % len(_CLASSES)]
            axes.plot(neuron["at"], line, color=color, linewidth=1.4, label=str(index))
        axes.set_yscale("log")
        axes.set_ylim(floor, 2 * floor / _LEAST)
    axes.legend(fontsize="x-small", edgecolor="none", framealpha=0.85, ncols=2, title="class")
    return _png(figure)


def draw_phases(history: Mapping[str, Sequence[float | None]]) -> bytes:
    """Return four accuracies and log α over epochs [variance, Figures 3 and 8]."""
    figure = _figure(_WIDE)
    left = _on(figure, "epoch", "test accuracy", (1, 2, 1))
    right = _on(figure, "epoch", "log α", (1, 2, 2))
    known = {_PHASES[name]: history[name] for name in _PHASES if name in history}
    alphas = {n.partition("/")[2]: v for n, v in history.items() if n.startswith("log_alpha/")}
    for axes, lines in ((left, known), (right, alphas)):
        for index, (name, values) in enumerate(lines.items()):
            points = [
                (e, v) for e, v in zip(history["epoch"], values, strict=True) if v is not None
            ]
            thick = 1.5 + 0.6 * (len(lines) - 1 - index)  # all are seen that lie on one another
            line = line_style(index, name.removeprefix("model."))
            axes.plot(*zip(*points, strict=True), linewidth=thick, **line)
        add_legend(axes, len(lines))
    if len(alphas) == 1:
        right.set_ylabel(f"log α of {next(iter(alphas)).removeprefix('model.')}")
    left.set(ylim=(0, 1.02))
    right.axhline(0.0, **DASHED)
    return _png(figure)
