"""Learning curves: what ``metrics.csv`` tells, epoch by epoch."""

from collections.abc import Mapping

from leanbayes.lab import plots
from leanbayes.lab.report.html import Html, figure, grid, section
from leanbayes.lab.report.study import Study, register_section
from leanbayes.lab.runs import Run

_MOST_LAYERS = 12
_LOSSES = {"negative_elbo": "−ELBO per example", "nll": "NLL per example", "accuracy": "accuracy"}
Columns = Mapping[str, list[float]]


@register_section
def learning_curves(run: Run, study: Study) -> Html | None:
    """Return −ELBO, NLL, accuracy; KL, mean σ and log α of each layer; the weight of the KL."""
    epochs = run.columns.get("epoch", [])
    if not epochs:
        return None
    x = [epoch + 1 for epoch in epochs]
    figures = [*_losses(x, run.columns), *_layers(x, run.columns), *_weight(x, run.columns)]
    return section("Learning curves", grid(figures)) if figures else None


def _losses(x: list[float], columns: Columns) -> list[Html]:
    figures = []
    for key, label in _LOSSES.items():
        both = {part: columns.get(f"{part}/{key}") for part in ("train", "validation")}
        lines = {part: values for part, values in both.items() if values is not None}
        if lines:
            parts = " and ".join({"train": "training"}.get(part, part) for part in lines)
            caption = f"{label[0].upper()}{label[1:]} on {parts} examples."
            figures.append(figure(plots.curves(x, lines, label), caption))
    return figures


def _layers(x: list[float], columns: Columns) -> list[Html]:
    figures = []
    if kls := _largest(_by_layer(columns, "kl")):
        caption = "KL from the prior by layer, in nats."
        figures.append(figure(plots.curves(x, kls, "KL (nats)", log=True), caption))
    scales, left_out = _first(_by_layer(columns, "scale"))
    if scales:
        caption = f"Mean standard deviation σ of the weights by layer{left_out}."
        figures.append(figure(plots.curves(x, scales, "mean σ", log=True), caption))
    alphas, left_out = _first(_by_layer(columns, "log_alpha"))
    if alphas:
        low, high = _by_layer(columns, "log_alpha_q25"), _by_layer(columns, "log_alpha_q75")
        bands = {name: (low[name], high[name]) for name in alphas if name in low and name in high}
        caption = f"log α of the weights by layer{left_out}: median, and the half around it."
        figures.append(figure(plots.curves(x, alphas, "log α", bands=bands), caption))
    return figures


def _weight(x: list[float], columns: Columns) -> list[Html]:
    weights = columns.get("kl_weight", [])
    if len(set(weights)) < 2:
        return []
    caption = "The weight of the KL in the loss, averaged over an epoch."
    return [figure(plots.curves(x, {"weight": weights}, "weight of the KL"), caption)]


def _by_layer(columns: Columns, kind: str) -> dict[str, list[float]]:
    return {
        name.removeprefix(f"{kind}/").removeprefix("model.") or "layer": values
        for name, values in columns.items()
        if name.startswith(f"{kind}/")
    }


def _first(layers: dict[str, list[float]]) -> tuple[dict[str, list[float]], str]:
    """As many layers as a plot can show, and a word about the others."""
    shown = dict(list(layers.items())[:_MOST_LAYERS])
    return shown, f", the first {len(shown)} of {len(layers)}" if len(layers) > len(shown) else ""


def _largest(layers: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the layers with most KL at the end; the sum of the others as one line."""
    if len(layers) <= _MOST_LAYERS:
        return layers
    kept = sorted(layers, key=lambda name: layers[name][-1])[-_MOST_LAYERS + 1 :]
    others = [values for name, values in layers.items() if name not in kept]
    shown = {name: values for name, values in layers.items() if name in kept}
    return {**shown, f"{len(others)} others": [sum(step) for step in zip(*others, strict=True)]}
