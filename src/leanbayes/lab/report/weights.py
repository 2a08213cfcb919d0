"""Sections about the weights: their standard deviations, and rates of dropout."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from leanbayes.lab import plots
from leanbayes.lab.report.html import Html, element, figure, grid, section, table
from leanbayes.lab.report.numbers import number
from leanbayes.lab.report.sections import register_section
from leanbayes.lab.report.study import Study, explained
from leanbayes.lab.runs import Run
from leanbayes.lab.weights import (
    log_alphas,
    mean_matrices,
    quartiles,
    scale_matrices,
    signal_to_noise,
)

__all__ = ["dropout_rates", "scales"]

_MOST_LAYERS = 12
_SPARSE = 3.0


@register_section
def scales(run: Run, study: Study) -> Html | None:
    """Standard deviations of the weights: heat maps and spectra."""
    if study.model is None:
        return None
    matrices = scale_matrices(study.model)
    if not matrices:
        return None
    shown = dict(list(matrices.items())[:_MOST_LAYERS])
    means = {n: mean for n, mean in mean_matrices(study.model).items() if n in shown}
    figures = [*_spectra(shown, "standard deviations σ"), *_spectra(means, "means μ")]
    figures += [
        figure(plots.heat_map(scale, "σ"), f"σ of {name}, {_shape(scale)}; {_range(scale)}.")
        for name, scale in shown.items()
    ]
    left = len(matrices) - len(shown)
    note = [element("p", f"The first {len(shown)} layers; {left} more are left out.")]
    return section(
        "Standard deviations of the weights",
        _signals(study.model),
        *(note if left else ()),
        grid(figures),
    )


def _signals(model: nn.Module) -> Html:
    """How far weights stand out of their own noise."""
    ratios = signal_to_noise(model)
    if not ratios:
        return Html()
    rows = [
        (
            name,
            f"{ratio.numel():,}",
            number(quartiles(ratio).median),
            f"{float((ratio < 1).float().mean()):.1%}",
        )
        for name, ratio in ratios.items()
    ]
    header = ("Layer", "Weights", "Median SNR", "SNR\u00a0<\u00a01")
    caption = "Signal-to-noise ratios |μ| / σ: weights below 1 are more noise than signal."
    return table(header, rows, caption)


def _spectra(matrices: Mapping[str, Tensor], what: str) -> list[Html]:
    """One picture, unless there is nothing but rank 1."""
    spectra = {name: explained(matrix) for name, matrix in matrices.items()}
    if all(len(shares) < 2 for shares in spectra.values()):
        return []
    caption = f"Spectra of the {what}: the share of the sum of squares in each singular value."
    return [figure(plots.spectra(spectra), caption)]


def _shape(matrix: Tensor) -> str:
    rows, columns = matrix.shape
    return f"{rows} outputs × {columns} inputs"


def _range(scale: Tensor) -> str:
    return (
        f"from {number(float(scale.min()))} to {number(float(scale.max()))}, "
        f"mean {number(float(scale.mean()))}"
    )


@register_section
def dropout_rates(run: Run, study: Study) -> Html | None:
    """Log α of every layer of Gaussian dropout, and how sparse it could be."""
    alphas = {} if study.model is None else log_alphas(study.model)
    layers = {name: alpha.flatten().cpu() for name, alpha in alphas.items()}
    if not layers:
        return None
    rows = [
        (
            name,
            f"{alpha.numel():,}",
            number(float(alpha.median())),
            f"{100 * float((alpha > _SPARSE).float().mean()):.1f} %",
        )
        for name, alpha in layers.items()
    ]
    header = ("Layer", "Weights", "Median log α", f"log\u00a0α\u00a0>\u00a0{_SPARSE:g}")
    shown = dict(list(layers.items())[:_MOST_LAYERS])
    single = all(bool((alpha == alpha[0]).all()) for alpha in shown.values())
    if single:
        png = plots.bars({name: float(alpha[0]) for name, alpha in shown.items()}, "log α")
    else:
        png = plots.histograms(shown, "log α")
    return section(
        "Dropout rates",
        table(header, rows, "Weights with a large α are mostly noise, and can be removed."),
        grid([figure(png, "log α of the weights, by layer.")]),
    )
