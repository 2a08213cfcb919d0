"""Sections about the weights: their standard deviations, and rates of dropout."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from leanbayes import plots as draw
from leanbayes.analysis.log_alpha import quartiles
from leanbayes.analysis.spectrum import explained_shares
from leanbayes.lab import plots, weights
from leanbayes.lab.report.html import Html, element, figure, grid, section, table
from leanbayes.lab.report.numbers import number
from leanbayes.lab.report.study import Study, register_section
from leanbayes.lab.runs import Run

_MOST_LAYERS = 12
_FULL_SPECTRUM = 1024
_SPECTRUM = 64
_SPARSE = 3.0


@register_section
def scales(run: Run, study: Study) -> Html | None:
    """Return standard deviations of the weights: heat maps and spectra."""
    matrices = {} if study.model is None else weights.scale_matrices(study.model)
    if study.model is None or not matrices:
        return None
    shown = dict(list(matrices.items())[:_MOST_LAYERS])
    means = {n: mean for n, mean in weights.mean_matrices(study.model).items() if n in shown}
    figures = [*_spectra(shown, "standard deviations σ"), *_spectra(means, "means μ")]
    figures += [_heat_map(name, scale) for name, scale in shown.items()]
    parts, left = [_signals(study.model)], len(matrices) - len(shown)
    if left:
        parts.append(element("p", f"The first {len(shown)} layers; {left} more are left out."))
    return section("Standard deviations of the weights", *parts, grid(figures))


def _signals(model: nn.Module) -> Html:
    """Return the signal-to-noise ratios of the weights."""
    ratios = weights.signal_to_noise(model)
    if not ratios:
        return Html()
    rows = []
    for name, ratio in ratios.items():
        noise = f"{float((ratio < 1).float().mean()):.1%}"
        rows.append((name, f"{ratio.numel():,}", number(quartiles(ratio).median), noise))
    header = ("Layer", "Weights", "Median SNR", "SNR\u00a0<\u00a01")
    caption = "Signal-to-noise ratios |μ| / σ: weights below 1 are more noise than signal."
    return table(header, rows, caption)


def _spectra(matrices: Mapping[str, Tensor], what: str) -> list[Html]:
    """Return one picture, unless there is nothing but rank 1."""
    spectra = {name: shares_shown(matrix) for name, matrix in matrices.items()}
    if all(len(shares) < 3 for shares in spectra.values()):
        return []
    caption = f"Spectra of the {what}: the share of the sum of squares in each singular value."
    return [figure(plots.png(draw.spectra, spectra), caption)]


def shares_shown(scale: Tensor) -> Tensor:
    """Return squared singular values over their sum, the first that are not rounding."""
    shares = explained_shares(scale, None if min(scale.shape) <= _FULL_SPECTRUM else _SPECTRUM)
    return shares[shares > torch.finfo(scale.dtype).eps ** 2][:_SPECTRUM]


def _heat_map(name: str, scale: Tensor) -> Html:
    low, high, mean = (number(float(value)) for value in (*scale.aminmax(), scale.mean()))
    shape = "{} outputs × {} inputs".format(*scale.shape)
    caption = f"σ of {name}, {shape}; from {low} to {high}, mean {mean}."
    return figure(plots.heat_map(scale, "σ"), caption)


@register_section
def dropout_rates(run: Run, study: Study) -> Html | None:
    """Return log α of every layer of Gaussian dropout, and how sparse it could be."""
    alphas = {} if study.model is None else weights.log_alphas(study.model)
    layers = {name: alpha.flatten().cpu() for name, alpha in alphas.items()}
    if not layers:
        return None
    rows = []
    for name, alpha in layers.items():
        sparse = f"{100 * float((alpha > _SPARSE).float().mean()):.1f}%"
        rows.append((name, f"{alpha.numel():,}", number(float(alpha.median())), sparse))
    header = ("Layer", "Weights", "Median log α", f"log\u00a0α\u00a0>\u00a0{_SPARSE:g}")
    shown = dict(list(layers.items())[:_MOST_LAYERS])
    if all(bool((alpha == alpha[0]).all()) for alpha in shown.values()):
        png = plots.bars({name: float(alpha[0]) for name, alpha in shown.items()}, "log α")
    else:
        png = plots.histograms(shown, "log α")
    return section(
        "Dropout rates",
        table(header, rows, "Weights with a large α are mostly noise, and can be removed."),
        grid([figure(png, "log α of the weights, by layer.")]),
    )
