"""Replacement of the posteriors and update of the priors of a model."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import nn

from leanbayes.distributions import GroupRelevanceNormal, WeightDistribution
from leanbayes.errors import require
from leanbayes.layers import Layer, RandomMap
from leanbayes.layers.random_map import refitted_bias
from leanbayes.models.random_maps import random_maps
from leanbayes.parameters.learned import Learned

M = TypeVar("M", bound=nn.Module)


def map_posteriors(
    model: M,
    function: Callable[[str, Learned[WeightDistribution]], Learned[WeightDistribution]],
    *,
    inplace: bool = False,
) -> M:
    """Replace every posterior by ``function(name, posterior)``; nothing changes if one fails.

    A plain bias, of which each member of a mixture has a copy, follows the number of members where
    the copies are equal; copies that differ have no single value, and the change is refused.
    """
    if not inplace:
        model = copy.deepcopy(model)
    changed = [(layer, function(name, layer.posterior)) for name, layer in random_maps(model)]
    for layer, posterior in changed:
        new, old = (tuple(q().event_shape) for q in (posterior, layer.posterior))
        require(new == old, f"the new posterior is over {new}, the layer's over {old}")
    counts = {layer: posterior().members for layer, posterior in changed}
    biases = list(_refitted_biases(model, counts))
    for layer, posterior in changed:
        layer.posterior = posterior
        layer.members = counts[layer]
    for owner, name, bias in biases:
        owner.register_parameter(name, bias)
    return model


def _refitted_biases(
    model: nn.Module, counts: Mapping[RandomMap, int]
) -> Iterator[tuple[Layer, str, nn.Parameter]]:
    """The plain biases of layers whose number of members changes, as they will be."""
    for place, layer in model.named_modules():
        maps = [part for _, part in random_maps(layer)] if isinstance(layer, Layer) else []
        before = max((part.members for part in maps), default=1)
        after = max((counts[part] for part in maps), default=1)
        if isinstance(layer, Layer) and before != after:
            for name, bias in layer.named_parameters(recurse=False):
                if "bias" in name:
                    yield layer, name, refitted_bias(bias, after, place)


@torch.no_grad()
def update_priors(model: nn.Module, rounds: int = 1) -> None:
    """Set the relevances of every ``GroupARD`` prior by its block updates."""
    for _, layer in random_maps(model):
        p = layer.prior()
        if isinstance(p, GroupRelevanceNormal):
            q = layer.posterior()
            for _ in range(rounds):
                p = p.updated(q)
            layer.prior.assign(**{name: getattr(p, name) for name in layer.prior.roles})
