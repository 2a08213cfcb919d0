"""Operations on whole models: KL, noise, members, posteriors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from leanbayes.distributions import GroupRelevanceNormal, WeightDistribution
from leanbayes.errors import require
from leanbayes.estimators import Estimator, weights
from leanbayes.layers import RandomMap
from leanbayes.learned import Learned
from leanbayes.ops import Usage

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
    kls = list(named_kl(model).values())
    require(bool(kls), "the model has no Bayesian layer; call lb.convert(model, …) first")
    return torch.stack(kls).sum()


@contextmanager
def using(model: nn.Module, estimator: Estimator) -> Iterator[None]:
    """Use one estimator in every layer for the length of a ``with`` block.

    Example:
        >>> import leanbayes as lb
        >>> model, x = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.Normal(1.0)), torch.ones(1, 3)
        >>> with using(model, lb.mean):
        ...     torch.equal(model(x), model(x))
        True
    """
    with _each(model, "estimator", lambda layer: estimator):
        yield


@contextmanager
def held(model: nn.Module, estimator: Estimator = weights) -> Iterator[None]:
    """Draw every layer once and keep the draw for the length of a ``with`` block.

    The model is then one function: the same for every batch, of any size.

    Example:
        >>> import leanbayes as lb
        >>> model, x = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.Normal(1.0)), torch.ones(1, 3)
        >>> with held(model):
        ...     torch.equal(model(x), model(x))
        True
    """
    usage = Usage(None, reused=True)
    with _each(model, "held", lambda layer: layer.fresh(estimator, usage)):
        yield


@contextmanager
def _each(model: nn.Module, name: str, value: Callable[[RandomMap], object]) -> Iterator[None]:
    """Give an attribute of every random map another value for the length of a ``with`` block."""
    before = [(layer, getattr(layer, name)) for _, layer in random_maps(model)]
    try:
        for layer, _ in before:
            setattr(layer, name, value(layer))
        yield
    finally:
        for layer, previous in before:
            setattr(layer, name, previous)


def members(model: nn.Module) -> int:
    """How many mixture members the model has: 1 unless it holds a mixture."""
    counts = {layer.members for _, layer in random_maps(model)} - {1}
    require(
        len(counts) <= 1,
        f"layers have different numbers of members, {sorted(counts)}; give all the same",
    )
    return counts.pop() if counts else 1


def tile(x: Tensor, members: int) -> Tensor:
    """Repeat a batch for every member, in contiguous blocks.

    Example:
        >>> tile(torch.tensor([1, 2]), 2)
        tensor([1, 2, 1, 2])
    """
    return x.repeat(members, *(1,) * (x.ndim - 1))


def map_posteriors(
    model: M,
    function: Callable[[str, Learned[WeightDistribution]], Learned[WeightDistribution]],
    *,
    inplace: bool = False,
) -> M:
    """Replace every posterior by ``function(name, posterior)``; nothing changes if one fails."""
    if not inplace:
        model = copy.deepcopy(model)
    changed = [(layer, function(name, layer.posterior)) for name, layer in random_maps(model)]
    for layer, posterior in changed:
        new, old = (tuple(q().event_shape) for q in (posterior, layer.posterior))
        require(new == old, f"the new posterior is over {new}, the layer's over {old}")
    for layer, posterior in changed:
        layer.posterior = posterior
        layer.members = posterior().members
    return model


@torch.no_grad()
def update_priors(model: nn.Module, rounds: int = 1) -> None:
    """Set the relevances of every :class:`~leanbayes.GroupARD` prior by its block updates."""
    for _, layer in random_maps(model):
        p = layer.prior()
        if isinstance(p, GroupRelevanceNormal):
            q = layer.posterior()
            for _ in range(rounds):
                p = p.updated(q)
            layer.prior.assign(row_precision=p.row_precision, column_precision=p.column_precision)
