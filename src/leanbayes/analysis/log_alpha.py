"""log α by layer, and how far a layer is from its zero-mean approximation [variance, 4.3]."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leanbayes.conversion.convert import select, topmost
from leanbayes.display import DisplayTable, shown_as_table
from leanbayes.distributions import (
    KroneckerNormal,
    LowRankProduct,
    Masked,
    Rank1Mixture,
    WeightDistribution,
)
from leanbayes.errors import choose, require
from leanbayes.layers import RandomMap, is_bayesian
from leanbayes.models.random_maps import random_maps


@torch.no_grad()
def scaled_layers(
    model: nn.Module, include: Sequence[str] = ("**",), *, biases: bool = False
) -> dict[str, RandomMap]:
    """Return the layers with standard deviations of single weights, by the names of ``named_kl``.

    Points have none, and rank-one factors scale whole rows and columns: both are left out.
    """
    maps = dict(random_maps(model))
    require(bool(maps), "the model has no Bayesian layer; call lb.convert(model, …) first")
    chosen = select(include, maps)
    left_out = set() if biases else biases_of(model)
    named = {name: maps[name] for name in maps if name in chosen and maps[name] not in left_out}
    layers = {name: layer for name, layer in named.items() if has_scales(layer)}
    specs = dict.fromkeys(repr(maps[name].posterior.spec) for name in maps if name in chosen)
    require(
        bool(layers),
        f"no layer has standard deviations of single weights ({', '.join(specs)}); convert with "
        "lb.MeanField(), lb.KTied(), lb.posteriors.MatrixNormal(), lb.posteriors.ZeroMean() or "
        "lb.posteriors.VariationalDropout()",
    )
    for name, layer in layers.items():
        q = layer.posterior()
        require(
            bool(q.mean.isfinite().all() and q.variance.isfinite().all()),
            f"layer {name!r} has a mean or a standard deviation that is NaN or infinite; look for "
            "the step at which training diverged",
        )
    return layers


def has_scales(layer: RandomMap) -> bool:
    """Return whether a layer has standard deviations of single weights."""
    q = layer.posterior()
    return not isinstance(q, LowRankProduct | Rank1Mixture) and bool((q.variance != 0).any())


def biases_of(model: nn.Module) -> set[nn.Module]:
    """Return the random maps of a model that are biases, which their names inside a layer say."""
    layers = topmost(model, is_bayesian)
    return {part for layer in layers for name, part in random_maps(layer) if "bias" in name}


class Quartiles(NamedTuple):
    """A quarter of the values lies below ``low``, half below ``median``."""

    low: float
    median: float
    high: float


def quartiles(values: Tensor) -> Quartiles:
    """Return quartiles, each the nearest of the values."""
    flat = values.detach().flatten()
    ranks = [1 + round(share * (len(flat) - 1)) for share in (0.25, 0.5, 0.75)]
    return Quartiles(*(float(flat.kthvalue(rank).values) for rank in ranks))


class LayerAlpha(NamedTuple):
    """Summary of the ratios ``α = σ² / μ²`` of one layer.

    ``None`` stands where a number has no closed form: correlated weights that are pruned or have a
    diagonal added, and noise that is not normal around means that are not zero.

    Attributes:
        name: name as in ``named_kl``; the empty name is the model itself.
        weights: number of weights that are not pruned.
        log_alpha: quartiles of log α; ``inf`` where the mean is zero.
        above: shares of the weights with a log α above the report's thresholds.
        output_snr: no input gives any output a mean of more than so many standard deviations: the
            largest ``√(Σ_j μ_ij² / σ_ij²)`` over outputs ``i`` (by Cauchy and Schwarz).
        distance: the total variation between the layer and its zero-mean approximation, from 0 to
            1: ``2 Φ(δ/2) − 1`` with ``δ² = Σ μ²/σ²``. No event, so no predicted probability,
            differs by more if the means of this layer are dropped.
        bound: the paper's bound on the same, ``δ / √(2π)`` [variance, eq. 38]; from 1 on it says
            nothing.
    """

    name: str
    weights: int
    log_alpha: Quartiles
    above: tuple[float, ...]
    output_snr: float | None
    distance: float | None
    bound: float | None

    def __repr__(self) -> str:
        low, median, high = (_number(value, ".2f") for value in self.log_alpha)
        others = ((name, getattr(self, name)) for name in ("output_snr", "distance", "bound"))
        rest = ", ".join(f"{name} {_number(value, '.3g')}" for name, value in others)
        return f"LayerAlpha({self.name!r}: log α {median} ({low} to {high}), {rest})"

    @property
    def is_variance_layer(self) -> bool:
        """Whether no input gives any output a mean beyond one standard deviation."""
        return self.output_snr is not None and self.output_snr < 1

    @property
    def bound_says_nothing(self) -> bool:
        """Whether the paper's bound is 1 or more, which every distance keeps."""
        return self.bound is not None and self.bound >= 1


@shown_as_table
@dataclass(frozen=True)
class AlphaReport:
    """log α of every layer in the network's order; ``print`` shows a table.

    Attributes:
        rows: one row per layer.
        thresholds: values of log α, to which the shares ``above`` belong.
    """

    rows: tuple[LayerAlpha, ...]
    thresholds: tuple[float, ...]

    @property
    def variance_layers(self) -> tuple[str, ...]:
        """The names of the layers that have become variance layers."""
        return tuple(row.name for row in self.rows if row.is_variance_layer)

    def __getitem__(self, name: str) -> LayerAlpha:
        return choose("layer", name, {row.name: row for row in self.rows})

    def table(self) -> DisplayTable:
        """Return a row for every layer."""
        head = ["layer", "weights", "log α 25%", "median", "75%"]
        head += [f"> {threshold:g}" for threshold in self.thresholds]
        head += ["output SNR", "distance", "bound", ""]
        vacuous = any(row.bound_says_nothing for row in self.rows)
        notes = ["* a bound of 1 or more says nothing: the distance is never above 1"] * vacuous
        return DisplayTable(head, [*map(_cells, self.rows)], notes=notes, left=(0, -1))


def _cells(row: LayerAlpha) -> list[str]:
    bound = _number(row.bound, ".3g") + ("*" if row.bound_says_nothing else "")
    return [
        row.name or "(the model)",
        f"{row.weights:,}",
        *(_number(value, ".2f") for value in row.log_alpha),
        *(f"{100 * share:.1f}%" for share in row.above),
        _number(row.output_snr, ".3g"),
        _number(row.distance, ".3g"),
        bound,
        "variance layer" if row.is_variance_layer else "",
    ]


def _number(value: float | None, form: str) -> str:
    if value is None:
        return "–"
    return format(value, form).replace("inf", "∞").replace("-", "−")


def alpha_report(model: nn.Module, *, thresholds: Sequence[float] = (0.0, 3.0, 8.0)) -> AlphaReport:
    """Report log α by layer, and which layers have become variance layers [variance, 4.3 and 6.1].

    It takes every posterior that has means and standard deviations, not only Gaussian dropout, and
    random biases; points and rank-one factors have no α of single weights and no row.

    A *variance layer* stores nothing in its means: no input whatever gives one of its outputs a
    mean beyond one standard deviation (``output_snr`` < 1). A large log α of most weights is not
    enough for that: a sparse layer has it too, and lives by the means of the others.

    Args:
        model: a converted model.
        thresholds: values of log α; 0 is as much noise as signal, 3 the threshold of sparse
            variational dropout.

    Returns:
        The report, which prints as a table.

    Raises:
        ValueError: If a threshold is NaN.
    """
    values = tuple(float(threshold) for threshold in thresholds)
    require(not any(map(math.isnan, values)), "a threshold of log α is NaN; give numbers")
    layers = scaled_layers(model, biases=True)
    return AlphaReport(
        tuple(layer_alpha(name, layer, values) for name, layer in layers.items()), values
    )


@torch.no_grad()
def layer_alpha(name: str, layer: RandomMap, thresholds: Sequence[float] = ()) -> LayerAlpha:
    """Return the row of one layer in an :func:`alpha_report`."""
    q = copy.deepcopy(layer.posterior).cpu().double()()
    log_alpha = _log_alpha(q)
    of_rows, of_all = _squared_signals(q, log_alpha)
    if isinstance(q, Masked):
        log_alpha = log_alpha[q.mask]
    signal = None if of_all is None else math.sqrt(of_all)
    return LayerAlpha(
        name,
        log_alpha.numel(),
        quartiles(log_alpha),
        tuple(float((log_alpha > t).double().mean()) for t in thresholds),
        None if of_rows is None else math.sqrt(float(of_rows.max())),
        None if signal is None else math.erf(signal / math.sqrt(8)),
        None if signal is None else signal / math.sqrt(2 * math.pi),
    )


def _log_alpha(q: WeightDistribution) -> Tensor:
    """Return ``log(σ² / μ²)`` of each weight, ``inf`` where the mean is zero."""
    base = q.base if isinstance(q, Masked) else q
    return (-base.log_inverse_alpha()).masked_fill(base.mean == 0, math.inf)


def _squared_signals(
    q: WeightDistribution, log_alpha: Tensor
) -> tuple[Tensor | None, float | None]:
    """``μᵀ Σ⁻¹ μ`` of every output's weights and, for normal ones, of all; ``None`` if unknown."""
    if not bool(q.mean.any()):
        return q.mean.new_zeros(q.event_shape[0]), 0.0
    if q.independent:
        rows = (-log_alpha).exp()
        if isinstance(q, Masked):
            rows = rows * q.mask
        rows = rows.sum(1)
        return rows, float(rows.sum()) if q.normal_marginals else None
    if not isinstance(q, KroneckerNormal) or q.diagonal is not None:
        return None, None
    whitened = q.columns.solve(q.mean.mT).mT
    rows = (q.mean * whitened).sum(1) / q.rows.variance
    return rows, float((q.mean * q.rows.solve(whitened)).sum())
