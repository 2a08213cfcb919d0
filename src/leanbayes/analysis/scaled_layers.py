"""Layers with standard deviations of single weights."""

from collections.abc import Sequence

import torch
from torch import nn

from leanbayes.conversion.convert import select, topmost
from leanbayes.distributions import LowRankProduct, Rank1Mixture
from leanbayes.errors import require
from leanbayes.layers import RandomMap, is_bayesian
from leanbayes.models.random_maps import random_maps


@torch.no_grad()
def scaled_layers(
    model: nn.Module, include: Sequence[str] = ("**",), *, biases: bool = False
) -> dict[str, RandomMap]:
    """The layers with standard deviations of single weights, by the names of ``named_kl``.

    Points have none, and rank-one factors scale whole rows and columns: both are left out.

    Example:
        >>> import leanbayes as lb
        >>> net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        >>> overrides = {"1": {"posterior": lb.posteriors.Point()}}
        >>> model = lb.convert(net, lb.MeanField(), lb.priors.Normal(1.0), overrides=overrides)
        >>> list(scaled_layers(model))
        ['0']
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
    """Whether a layer has standard deviations of single weights."""
    q = layer.posterior()
    return not isinstance(q, LowRankProduct | Rank1Mixture) and bool((q.variance != 0).any())


def biases_of(model: nn.Module) -> set[nn.Module]:
    """The random maps of a model that are biases, which their names inside a layer say."""
    layers = topmost(model, is_bayesian)
    return {part for layer in layers for name, part in random_maps(layer) if "bias" in name}
