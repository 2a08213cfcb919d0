"""Pruning: weights, rows or columns that matter least become zero for good."""

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from leanbayes.analysis.log_alpha import layer_alpha, scaled_layers
from leanbayes.distributions import GroupRelevanceNormal, Masked, WeightDistribution
from leanbayes.errors import require, require_choice
from leanbayes.layers import RandomMap
from leanbayes.models.random_maps import map_posteriors, random_maps
from leanbayes.parameters.learned import Learned
from leanbayes.posteriors.independent import masked
from leanbayes.registry import Registry

M = TypeVar("M", bound=nn.Module)
ScoreOfWeights = Callable[[WeightDistribution, Distribution], Tensor]
S = TypeVar("S", bound=ScoreOfWeights)
N = TypeVar("N", float, Tensor)
ScoreOfGroups = Callable[[WeightDistribution, Distribution, int], Tensor]
Scope = Literal["layer", "model"]
Groups = Literal["weight", "row", "column"]

RELEVANT = 1 / (1 + math.exp(3))
"""The least relevance, 0.047, that stays unless another is asked for: that of log α = 3."""


@dataclass(frozen=True)
class Criterion:
    """One way to say how much every weight matters.

    Args:
        name: the name for :func:`prune`.
        keeps: scores that stay, the ``"large"`` or the ``"small"`` ones.
        needs_means: whether it says nothing where means carry nothing, so that it must not be used
            on a variance layer.
        score: from a posterior and its prior to one number per weight, ``[out, in]``.
        of_groups: from the posterior, pruned as it is, its prior and the dimension along which
            weights are taken together, to one number per row or column. Without it a group matters
            as much as the weight in it that matters most.
        threshold: default threshold if neither a share nor a threshold is given.
    """

    name: str
    keeps: Literal["large", "small"]
    needs_means: bool
    score: ScoreOfWeights = field(compare=False)
    of_groups: ScoreOfGroups | None = field(default=None, compare=False)
    threshold: float | None = None

    def signed(self, score: N) -> N:
        """Map a score to its importance and back; important weights stay."""
        return score if self.keeps == "large" else -score

    @torch.no_grad()
    def importance(self, layer: RandomMap, groups: Groups = "weight") -> Tensor:
        """Return the scores of a layer, signed so that large ones stay; −∞ where it is pruned."""
        if groups == "weight":
            return self._of_weights(layer)
        q, along = layer.posterior(), 1 if groups == "row" else 0
        if self.of_groups is None:
            return self._of_weights(layer).amax(along)
        score = self.signed(self.of_groups(q, layer.prior(), along).double().cpu())
        if isinstance(q, Masked):
            score = score.masked_fill(~q.mask.any(along).cpu(), -math.inf)
        return score

    def _of_weights(self, layer: RandomMap) -> Tensor:
        q = layer.posterior()
        base = q.base if isinstance(q, Masked) else q
        score = self.score(base, layer.prior()).double().cpu()
        require(
            score.shape == q.event_shape and not bool(score.isnan().any()),
            f"criterion {self.name!r} gave scores of shape {tuple(score.shape)}, or a NaN; it "
            f"needs one number for each weight, {tuple(q.event_shape)}",
        )
        score = self.signed(score)
        return score.masked_fill(~q.mask.cpu(), -math.inf) if isinstance(q, Masked) else score


CRITERIA = Registry[Criterion]("pruning criterion")
"""Every criterion by name."""


def register_criterion(
    name: str,
    *,
    keeps: Literal["large", "small"] = "large",
    needs_means: bool = False,
    of_groups: ScoreOfGroups | None = None,
    threshold: float | None = None,
) -> Callable[[S], S]:
    """Make a function of a posterior and its prior known as a criterion of :func:`prune`.

    Args:
        name: name.
        keeps: whether weights with ``"large"`` or with ``"small"`` scores stay.
        needs_means: whether it says nothing of a layer whose means carry nothing.
        of_groups: importance of a row or column, given the posterior, its prior and the
            dimension along which to take weights together; by default as much as its best weight.
        threshold: default threshold if :func:`prune` is given neither a share nor a threshold.

    ``docs/extending/criterion.py`` is one to copy.

    Returns:
        The decorator.

    Raises:
        ValueError: If ``keeps`` is unknown.
    """
    require_choice("keeps", keeps, ("large", "small"))

    def register(score: S) -> S:
        made = Criterion(name, keeps, needs_means, score, of_groups, threshold)
        CRITERIA.register(made, name=name)
        return score

    return register


@register_criterion("scale")
def _scale(q: WeightDistribution, p: Distribution) -> Tensor:
    """Return σ: what a variance layer is pruned by [variance, figure 5]."""
    return q.variance.sqrt()


@register_criterion("snr", needs_means=True)
def _snr(q: WeightDistribution, p: Distribution) -> Tensor:
    """Return ``|μ| / σ``."""
    return q.mean.abs() / q.variance.sqrt().clamp_min(torch.finfo(q.variance.dtype).tiny)


@register_criterion("log_alpha", keeps="small", needs_means=True)
def _log_alpha(q: WeightDistribution, p: Distribution) -> Tensor:
    """``log(σ² / μ²)``, as sparse variational dropout does; the order is that of ``"snr"``."""
    return -q.log_inverse_alpha()


def _relevance_of_groups(q: WeightDistribution, p: Distribution, along: int) -> Tensor:
    """``Σ μ²/λ² / Σ E[w²]/λ²`` over a group, with the λ of a prior of groups, or else one for all.

    At the optimum of :class:`~leanbayes.priors.GroupARD` the denominator is the size of the group.
    """
    precision = p.scale**-2 if isinstance(p, GroupRelevanceNormal) else q.mean.new_ones(())
    signal = (q.mean.square() * precision).sum(along)
    total = signal + (q.variance * precision).sum(along)
    return signal / total.clamp_min(torch.finfo(total.dtype).tiny)


@register_criterion(
    "relevance", needs_means=True, of_groups=_relevance_of_groups, threshold=RELEVANT
)
def _relevance(q: WeightDistribution, p: Distribution) -> Tensor:
    """Return ``μ² / E[w²] = 1 / (1 + α)``: how much of a weight the data determine, from 0 to 1.

    It is ``1 − σ²/λ²`` at the optimal ``λ² = E[w²]`` of :class:`~leanbayes.priors.ARD`, and the KL
    is ``−½ log(1 − relevance)`` [matrix normal, section 3.1].
    """
    return q.log_inverse_alpha().sigmoid()


def prune(
    model: M,
    by: str = "scale",
    *,
    groups: Groups = "weight",
    keep: float | None = None,
    threshold: float | None = None,
    scope: Scope = "layer",
    include: Sequence[str] = ("**",),
    inplace: bool = False,
) -> M:
    """Set the least important weights to zero: in samples, in the mean and in the KL.

    The mask is part of the posterior (:class:`~leanbayes.posteriors.Pruned`): it is saved,
    training goes on with what is kept, and what is pruned already stays so. Biases, points and
    rank-one factors are left as they are. :func:`~leanbayes.compact` makes the network smaller.

    A variance layer is pruned by ``"scale"``; all else destroys it, with a warning. **By
    ``"relevance"``, what is below 1 / (1 + e³) = 0.047 (log α > 3) becomes zero** by default.

    Args:
        model: a converted model with standard deviations, of any family.
        by: ``"scale"`` (σ), ``"snr"`` (``|μ| / σ``), ``"log_alpha"`` (``log σ²/μ²``),
            ``"relevance"`` (``Σ μ²/λ² / Σ E[w²]/λ²``, λ of :class:`~leanbayes.priors.GroupARD`),
            or a name from :func:`register_criterion`.
        groups: unit of pruning: a ``"weight"``, a ``"row"`` (output) or a ``"column"`` (input).
        keep: the share of them to keep, in (0, 1]; ties are broken at random, always alike.
        threshold: instead of ``keep``: prune what is below it, every log α above.
        scope: with ``keep``, rank within each ``"layer"``, or once over the ``"model"`` (not by σ,
            which has the units of its layer).
        include: patterns of layer names, as in :func:`~leanbayes.convert`.
        inplace: change the model instead of a copy; an optimizer of it can go on.

    Returns:
        The pruned model.

    Raises:
        ValueError: If not exactly one of ``keep`` and ``threshold`` is given, or one is out of
            range.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(10, 8), lb.posteriors.ZeroMean(), lb.priors.LogUniform())
        >>> lb.compression.density(lb.prune(model, by="scale", keep=0.05))
        {'': 0.05}
    """
    criterion = CRITERIA[by]
    threshold = criterion.threshold if keep is None and threshold is None else threshold
    _check_amount(keep, threshold, scope, groups)
    model = model if inplace else copy.deepcopy(model)
    layers = scaled_layers(model, include)
    _warn_of_variance_layers(criterion, layers)
    scores = {name: criterion.importance(layer, groups) for name, layer in layers.items()}
    masks = _largest(scores, keep, scope) if keep else _above(scores, threshold or 0.0, criterion)
    _warn_of_empty_layers(masks)
    kept = {name: _kept(layers[name], mask, groups) for name, mask in masks.items()}
    return map_posteriors(model, lambda name, old: kept.get(name, old), inplace=True)


@torch.no_grad()
def density(model: nn.Module) -> dict[str, float]:
    """Return the share of its weights that every layer keeps, by the names of ``named_kl``.

    Args:
        model: Converted model.

    Returns:
        Shares by the names of ``named_kl``.
    """
    laws = {name: layer.posterior() for name, layer in random_maps(model)}
    return {
        name: float(q.mask.double().mean()) if isinstance(q, Masked) else 1.0
        for name, q in laws.items()
    }


def _kept(layer: RandomMap, mask: Tensor, groups: Groups) -> Learned[WeightDistribution]:
    """Return the posterior of a layer that keeps these weights, rows or columns."""
    if groups != "weight":
        mask = mask.unsqueeze(1 if groups == "row" else 0)
    return masked(layer.posterior, mask.expand(layer.posterior().event_shape).clone())


def _check_amount(
    keep: float | None, threshold: float | None, scope: Scope, groups: Groups
) -> None:
    require_choice("groups", groups, ("weight", "row", "column"))
    require_choice("scope", scope, ("layer", "model"))
    given = f"keep is {keep} and threshold is {threshold}"
    require((keep is None) != (threshold is None), f"{given}; give one of them")
    if keep is not None:
        require(0 < keep <= 1, f"keep is {keep}; it is a share of the weights, in (0, 1]")
    if threshold is not None:
        require(math.isfinite(threshold), f"threshold is {threshold}; give a finite number")


def _largest(scores: Mapping[str, Tensor], keep: float, scope: Scope) -> dict[str, Tensor]:
    """Return masks of the largest scores, of each layer or of all together."""
    if scope == "layer":
        return {name: _top(score, keep) for name, score in scores.items()}
    mask = _top(torch.cat([score.flatten() for score in scores.values()]), keep)
    parts = mask.split([score.numel() for score in scores.values()])
    return {n: part.view_as(scores[n]) for n, part in zip(scores, parts, strict=True)}


def _top(score: Tensor, keep: float) -> Tensor:
    """The largest scores; the sort is stable, over an order that is drawn and always the same."""
    flat = score.flatten()
    order = torch.randperm(len(flat), generator=torch.Generator().manual_seed(0))
    ranked = order[flat[order].argsort(descending=True, stable=True)]
    mask = torch.zeros(len(flat), dtype=torch.bool)
    mask[ranked[: max(1, round(keep * len(flat)))]] = True
    return (mask & (flat > -math.inf)).view_as(score)


def _above(
    scores: Mapping[str, Tensor], threshold: float, criterion: Criterion
) -> dict[str, Tensor]:
    """Return masks of the weights that a threshold keeps; one that keeps none is refused."""
    cut = criterion.signed(threshold)
    best = max(float(score.max()) for score in scores.values())
    side = "largest" if criterion.keeps == "large" else "smallest"
    require(
        best >= cut and best > -math.inf,
        f"threshold {threshold:g} would prune every weight: the {side} {criterion.name} is "
        f"{criterion.signed(best):.4g}; choose one that keeps some, or give keep= instead",
    )
    return {name: (score >= cut) & (score > -math.inf) for name, score in scores.items()}


def _warn_of_empty_layers(masks: Mapping[str, Tensor]) -> None:
    empty = [name for name, mask in masks.items() if not bool(mask.any())]
    if empty:
        warnings.warn(
            f"layer {empty[0]!r} keeps no weight, so nothing passes through it; use "
            "scope='layer', or keep more",
            stacklevel=3,
        )


def _warn_of_variance_layers(criterion: Criterion, layers: Mapping[str, RandomMap]) -> None:
    if not criterion.needs_means:
        return
    for name, layer in layers.items():
        if layer_alpha(name, layer).is_variance_layer:
            warnings.warn(
                f"layer {name!r} is a variance layer: its information is in the standard "
                f"deviations, and pruning it by {criterion.name!r} destroys it; use by='scale'",
                stacklevel=3,
            )
