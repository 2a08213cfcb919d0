"""Operations on whole models: KL, noise, members, posteriors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from leanbayes.context import Held, announce, switch
from leanbayes.distributions import GroupRelevanceNormal, WeightDistribution
from leanbayes.distributions.base import draws_anew
from leanbayes.dropout import MCDropout
from leanbayes.ensemble import DeepEnsemble
from leanbayes.errors import require
from leanbayes.estimators import Estimator, weights
from leanbayes.kl import total_divergence
from leanbayes.layers import Layer, RandomMap
from leanbayes.layers.random_map import refitted_bias
from leanbayes.learned import Learned
from leanbayes.ops import Usage
from leanbayes.precision import full_precision

__all__ = [
    "held",
    "kl",
    "map_posteriors",
    "members",
    "named_kl",
    "random_maps",
    "tile",
    "update_priors",
    "using",
]

M = TypeVar("M", bound=nn.Module)


def random_maps(model: nn.Module) -> Iterator[tuple[str, RandomMap]]:
    """Every random map of the model with its name; a shared layer comes once."""
    for name, module in model.named_modules():
        if isinstance(module, RandomMap):
            yield name, module


def named_kl(model: nn.Module) -> dict[str, Tensor]:
    """The KL of every random map, by name."""
    return {name: layer.kl() for name, layer in random_maps(model)}


def kl(model: nn.Module) -> Tensor:
    """The KL of the whole model: the sum over weights and layers, a function of the parameters.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.Normal(1.0))
        >>> kl(model).shape
        torch.Size([])
    """
    layers = [layer for _, layer in random_maps(model)]
    require(bool(layers), "the model has no Bayesian layer; call lb.convert(model, …) first")
    if torch.compiler.is_compiling() or any(map(_has_its_own_kl, layers)):
        return torch.stack([layer.kl() for layer in layers]).sum()
    pairs = ((layer.posterior(), layer.prior()) for layer in layers)
    if not torch._C._is_any_autocast_enabled():
        return total_divergence(pairs)
    with ExitStack() as exact:
        for device in {layer.posterior.like.device for layer in layers}:
            exact.enter_context(full_precision(device))
        return total_divergence(pairs)


def _has_its_own_kl(layer: RandomMap) -> bool:
    """Whether a subclass says what the KL is, or FSDP gathers parameters around it."""
    return type(layer).kl is not RandomMap.kl or "kl" in vars(layer)


@contextmanager
def using(model: nn.Module, estimator: Estimator) -> Iterator[None]:
    """Use one estimator in every layer for the length of a ``with`` block.

    Other threads and tasks that run the model meanwhile do not notice; the innermost block wins.

    Example:
        >>> import leanbayes as lb
        >>> model, x = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.Normal(1.0)), torch.ones(1, 3)
        >>> with using(model, lb.mean):
        ...     torch.equal(model(x), model(x))
        True
    """
    with switch({layer: estimator for _, layer in random_maps(model)}):
        yield


@contextmanager
def held(model: nn.Module, estimator: Estimator = weights) -> Iterator[None]:
    """Draw every layer once and keep the draw for the length of a ``with`` block.

    The model is then one function: the same for every batch, of any size. Other threads and tasks
    that run the model meanwhile do not notice.

    Example:
        >>> import leanbayes as lb
        >>> model, x = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.Normal(1.0)), torch.ones(1, 3)
        >>> with held(model):
        ...     torch.equal(model(x), model(x))
        True
    """
    require(
        not any(isinstance(module, MCDropout) for module in model.modules()),
        "MC dropout draws for every example, so there is no one function to hold; leave held or "
        "coherent out",
    )
    usage = Usage(None, reused=True)
    drawn = {layer: layer.fresh(estimator, usage, layer.op) for _, layer in random_maps(model)}
    require(
        not any(draws_anew(each) for each in drawn.values()),
        "local draws noise for every output, so there is no one function to hold; use "
        "held(model, lb.weights)",
    )
    with switch({layer: Held(each, layer.op) for layer, each in drawn.items()}):
        yield


def members(model: nn.Module) -> int:
    """How many mixture members the model has: 1 unless it holds a mixture."""
    counts = set(_member_counts(model)) - {1}
    require(
        len(counts) <= 1,
        f"layers have different numbers of members, {sorted(counts)}; give all the same",
    )
    return counts.pop() if counts else 1


def _member_counts(model: nn.Module) -> Iterator[int]:
    """Of every random map and of every ensemble, whose networks may be mixtures themselves."""
    if isinstance(model, DeepEnsemble):
        inside = {members(network) for network in model.networks}
        require(
            len(inside) == 1,
            f"networks of an ensemble have different numbers of members, {sorted(inside)}; give "
            "all the same",
        )
        yield len(model.networks) * inside.pop()
        return
    if isinstance(model, RandomMap):
        yield model.members
    for part in model.children():
        yield from _member_counts(part)


def tile(x: Tensor, members: int, dim: int = 0) -> Tensor:
    """Repeat a batch for every member, in contiguous blocks.

    As long as the result lives, layers compare their inputs with its number of examples.

    Args:
        x: the batch.
        members: how often.
        dim: which dimension counts examples.

    Example:
        >>> tile(torch.tensor([1, 2]), 2)
        tensor([1, 2, 1, 2])
    """
    repeats = [1] * x.ndim
    repeats[dim] = members
    tiled = x.repeat(repeats)
    announce(tiled, dim)
    return tiled


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
    """Set the relevances of every :class:`~leanbayes.GroupARD` prior by its block updates."""
    for _, layer in random_maps(model):
        p = layer.prior()
        if isinstance(p, GroupRelevanceNormal):
            q = layer.posterior()
            for _ in range(rounds):
                p = p.updated(q)
            layer.prior.assign(**{name: getattr(p, name) for name in layer.prior.roles})
