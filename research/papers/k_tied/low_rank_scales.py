"""Smaller trained scales: rank truncation [k-tied, section 3] and k-tied factors."""

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from leanbayes.analysis.spectrum import is_matrix
from leanbayes.conversion.convert import select
from leanbayes.distributions import KTiedNormal, LocationScale, WeightDistribution
from leanbayes.errors import require, require_count, require_positive
from leanbayes.layers import RandomMap
from leanbayes.models.random_maps import map_posteriors, random_maps
from leanbayes.parameters.learned import Learned
from leanbayes.posteriors import KTied, MeanField
from research.papers.k_tied.tied_factors import tied_factors
from research.papers.scales import with_scales

M = TypeVar("M", bound=nn.Module)


def truncate(
    model: M,
    rank: int,
    *,
    floor: float = 1e-5,
    include: Sequence[str] = ("**",),
) -> M:
    """Replace standard deviations by the nearest matrices of a lower rank [k-tied, section 3].

    ``σ ≈ Σ_{i ≤ rank} γᵢ uᵢ vᵢᵀ`` by a singular value decomposition, raised to ``floor`` where it
    falls below: at the zero of the k-tied supplement (appendix D.3) the KL would be infinite. The
    scales stay dense and are stored as their logs, as those of :class:`MeanField`.

    Layers with independent normal weights and free means are truncated: mean field,
    Gaussian dropout, k-tied of a higher rank. All others are left as they are: biases, points,
    variance layers, matrix normals, rank-one factors, pruned layers; and scales of that rank or
    lower.

    Args:
        model: a converted model.
        rank: how many singular values to keep.
        floor: no standard deviation falls below it.
        include: patterns of layer names, as in :func:`convert`.

    Returns:
        The model with scales of low rank.

    Raises:
        ValueError: If ``floor`` is not positive.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(6, 5), lb.MeanField(), lb.priors.Normal(1.0))
        >>> scale = truncate(model, 2).posterior().scale
        >>> int(torch.linalg.matrix_rank(scale, rtol=1e-5))
        2
    """
    require_positive(floor=floor)

    def truncated(layer: RandomMap) -> Learned[WeightDistribution]:
        u, s, v = torch.linalg.svd(_scale(layer), full_matrices=False)
        if len(s) <= rank:
            return layer.posterior
        scale = ((u[:, :rank] * s[:rank]) @ v[:rank]).clamp_min(floor)
        return with_scales(MeanField(), layer, scale=scale)

    return _compressed(model, rank, truncated, include)


def to_k_tied(model: M, rank: int, *, include: Sequence[str] = ("**",)) -> M:
    """Replace standard deviations by k-tied ones, ``U Vᵀ`` with positive factors [k-tied, eq. 3].

    The means stay; the factors minimize ``KL(tied ‖ before)``
    (:func:`~research.papers.k_tied.tied_factors.tied_factors`). Training can go on. The same layers
    change as in :func:`truncate`.

    Args:
        model: a converted model.
        rank: the number of rank-one terms.
        include: patterns of layer names, as in :func:`convert`.

    Returns:
        The model with tied scales.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(60, 50), lb.MeanField(), lb.priors.Normal(1.0))
        >>> smaller = to_k_tied(model, 2)
        >>> lb.count_parameters(smaller).total
        3270
    """

    def tied(layer: RandomMap) -> Learned[WeightDistribution]:
        u, v = tied_factors(_scale(layer), rank)
        return with_scales(KTied(rank), layer, u=u, v=v)

    return _compressed(model, rank, tied, include)


@torch.no_grad()
def _compressed(
    model: M,
    rank: int,
    change: Callable[[RandomMap], Learned[WeightDistribution]],
    include: Sequence[str],
) -> M:
    """Change every layer that can be, unless its scales are tied with that rank or a lower one."""
    require_count("rank", rank, 1)
    model = copy.deepcopy(model)
    layers = {name: layer for name, layer in random_maps(model) if _has_free_scales(layer)}
    require(
        bool(layers),
        "no layer has a matrix of independent normal weights with means; convert with "
        "lb.MeanField(), lb.posteriors.VariationalDropout() or lb.KTied()",
    )
    changed = {}
    for name in select(include, layers):
        q = layers[name].posterior()
        if not (isinstance(q, KTiedNormal) and q.rank <= rank):
            changed[name] = change(layers[name])
    return map_posteriors(model, lambda name, old: changed.get(name, old), inplace=True)


def _has_free_scales(layer: RandomMap) -> bool:
    q = layer.posterior()
    independent = isinstance(q, LocationScale | KTiedNormal) and q.normal_marginals
    return independent and bool(layer.posterior.tensors("means")) and is_matrix(layer)


def _scale(layer: RandomMap) -> Tensor:
    """Decompositions are made in double precision, on the CPU."""
    q = layer.posterior()
    assert isinstance(q, LocationScale | KTiedNormal)
    return q.scale.abs().cpu().double()
