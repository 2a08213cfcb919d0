"""Layers with standard deviations of single weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from leanbayes.conversion.convert import select, topmost
from leanbayes.distributions import LowRankProduct, Rank1Mixture, WeightDistribution
from leanbayes.errors import require
from leanbayes.layers import RandomMap, is_bayesian
from leanbayes.models.random_maps import random_maps
from leanbayes.parameters.learned import Learned
from leanbayes.posteriors import Posterior


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


def with_scales(spec: Posterior, layer: RandomMap, **values: Tensor) -> Learned[WeightDistribution]:
    """Another posterior with the layer's own means, where it has any, and these scales."""
    before = layer.posterior
    (loc,) = before.tensors("means").values()
    trained = any(p.requires_grad for p in before.tensors("scales").values())
    with torch.random.fork_rng(devices=[]):  # first values are drawn, and not used
        after = spec(torch.zeros_like(loc, device="cpu"), layer.op).to(loc.device)
    for name in after.tensors("means"):
        after.register_parameter(name, loc)
    after.assign(**values)
    for parameter in after.tensors("scales").values():
        parameter.requires_grad_(trained)
    return after.train(before.training)
