"""Operations on whole models: KL, noise, members, posteriors, parameter counts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from leanbayes.distributions import GroupRelevanceNormal, WeightDistribution
from leanbayes.estimators import Estimator, weights
from leanbayes.layers import RandomMap
from leanbayes.learned import Learned
from leanbayes.ops import Usage

__all__ = [
    "ParameterCounts",
    "count_parameters",
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
    kls = named_kl(model)
    if not kls:
        raise ValueError("the model has no Bayesian layer; call lb.convert(model, …) first")
    return torch.stack(list(kls.values())).sum()


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
    layers = [layer for _, layer in random_maps(model)]
    before = [layer.estimator for layer in layers]
    try:
        for layer in layers:
            layer.estimator = estimator
        yield
    finally:
        for layer, previous in zip(layers, before, strict=True):
            layer.estimator = previous


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
    layers = [layer for _, layer in random_maps(model)]
    before = [layer.held for layer in layers]
    usage = Usage(None, reused=True)
    try:
        for layer in layers:
            layer.held = estimator(layer.posterior(), layer.op, usage)
        yield
    finally:
        for layer, previous in zip(layers, before, strict=True):
            layer.held = previous


def members(model: nn.Module) -> int:
    """How many mixture members the model has: 1 unless it holds a mixture."""
    counts = {layer.members for _, layer in random_maps(model)} - {1}
    if len(counts) > 1:
        raise ValueError(
            f"layers have different numbers of members, {sorted(counts)}; give all the same"
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
        if posterior().event_shape != layer.posterior().event_shape:
            raise ValueError(
                f"the new posterior is over {tuple(posterior().event_shape)}, "
                f"the layer's over {tuple(layer.posterior().event_shape)}"
            )
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


class ParameterCounts(NamedTuple):
    """How many numbers are trained, by what they are for."""

    means: int
    scales: int
    other: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


def count_parameters(model: nn.Module) -> ParameterCounts:
    """Count trained parameters: means (of weights and of rank-one factors), scales, the rest.

    Example:
        >>> import leanbayes as lb
        >>> count_parameters(lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.Normal(1.0)))
        ParameterCounts(means=6, scales=6, other=2)
    """
    means: set[nn.Parameter] = set()
    scales: set[nn.Parameter] = set()
    for _, layer in random_maps(model):
        means.update(layer.posterior.tensors("means", "factors").values())
        scales.update(layer.posterior.tensors("scales").values())
    other = set(model.parameters()) - means - scales
    return ParameterCounts(
        *(sum(p.numel() for p in group if p.requires_grad) for group in (means, scales, other))
    )
