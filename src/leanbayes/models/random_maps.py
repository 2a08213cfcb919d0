"""The random maps of a model: their names and KL, members, posteriors replaced, noise switched."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from leanbayes.distributions import GroupRelevanceNormal, WeightDistribution
from leanbayes.distributions.kl import total_divergence
from leanbayes.errors import require
from leanbayes.estimators import Estimator, weights
from leanbayes.layers import Layer, RandomMap
from leanbayes.layers.dropout import MCDropout
from leanbayes.layers.forward_pass import Held, draws_anew, set_estimators
from leanbayes.layers.random_map import refitted_bias
from leanbayes.models.baselines import DeepEnsemble
from leanbayes.ops import Usage
from leanbayes.parameters.learned import Learned
from leanbayes.precision import full_precision


def random_maps(model: nn.Module) -> Iterator[tuple[str, RandomMap]]:
    """Yield every random map of the model with its name; a shared layer comes once.

    Args:
        model: Any model.

    Returns:
        An iterator of names and random maps.
    """
    for name, module in model.named_modules():
        if isinstance(module, RandomMap):
            yield name, module


def named_kl(model: nn.Module) -> dict[str, Tensor]:
    """Return the KL of every random map, by name.

    Args:
        model: Converted model.

    Returns:
        The KL of each random map in nats.
    """
    return {name: layer.kl() for name, layer in random_maps(model)}


def kl(model: nn.Module) -> Tensor:
    """Return the KL of the whole model: the sum over weights and layers.

    Args:
        model: Converted model.

    Returns:
        The KL in nats, a scalar with gradients.

    Raises:
        ValueError: If the model has no Bayesian layer.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0))
        >>> kl(model).shape
        torch.Size([])
    """
    layers = [layer for _, layer in random_maps(model)]
    if not layers:
        raise ValueError("the model has no Bayesian layer; call lb.convert(model, …) first")
    pairs, totals = [], []
    with full_precision(layers[0].posterior.like.device):
        for layer in layers:
            if type(layer).kl is not RandomMap.kl or "kl" in vars(layer):
                totals.append(layer.kl())  # of a subclass; or FSDP gathers parameters around it
            else:
                pairs.append((layer.posterior(), layer.prior()))
        if pairs:
            totals.append(total_divergence(pairs))
        return totals[0] if len(totals) == 1 else torch.stack(totals).sum()


def members(model: nn.Module) -> int:
    """Return how many mixture members the model has: 1 unless it holds a mixture.

    Args:
        model: Any model.

    Returns:
        The number of members.

    Raises:
        ValueError: If layers have different numbers.
    """
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


def splits_batch(model: nn.Module) -> bool:
    """Return whether each member is to learn from a share of a batch instead of all of it."""
    parts = list(model.modules())
    mixtures = [part for part in parts if isinstance(part, RandomMap) and part.members > 1]
    is_ensemble = any(isinstance(part, DeepEnsemble) for part in parts)
    return bool(mixtures) and not is_ensemble and all(part.splits_batch for part in mixtures)


def tile(x: Tensor, members: int, dim: int = 0) -> Tensor:
    """Repeat a batch for every member, in contiguous blocks.

    Args:
        x: the batch.
        members: number of repetitions.
        dim: dimension that counts examples.

    Returns:
        The repeated batch.

    Example:
        >>> tile(torch.tensor([1, 2]), 2)
        tensor([1, 2, 1, 2])
    """
    repeats = [1] * x.ndim
    repeats[dim] = members
    return x.repeat(repeats)


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

    Args:
        model: Converted model.
        function: Maps a name and a posterior to the new posterior.
        inplace: Whether to change the model instead of a copy.

    Returns:
        The changed model.

    Raises:
        ValueError: If a new posterior has another shape.
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
    """Set the relevances of every ``GroupARD`` prior by its block updates.

    Args:
        model: Converted model.
        rounds: Number of rounds of updates.
    """
    for _, layer in random_maps(model):
        p = layer.prior()
        if isinstance(p, GroupRelevanceNormal):
            q = layer.posterior()
            for _ in range(rounds):
                p = p.updated(q)
            layer.prior.assign(**{name: getattr(p, name) for name in layer.prior.roles})


@contextmanager
def using(model: nn.Module, estimator: Estimator) -> Iterator[None]:
    """Use one estimator in every layer for the length of a ``with`` block.

    Other threads and tasks that run the model meanwhile do not notice; the innermost block wins.

    Args:
        model: Converted model.
        estimator: Estimator to use.

    Returns:
        A context manager.

    Example:
        >>> import leanbayes as lb
        >>> x = torch.ones(1, 3)
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0))
        >>> with using(model, lb.estimators.mean):
        ...     torch.equal(model(x), model(x))
        True
    """
    with set_estimators({layer: estimator for _, layer in random_maps(model)}):
        yield


@contextmanager
def held(model: nn.Module, estimator: Estimator = weights) -> Iterator[None]:
    """Draw every layer once and keep the draw for the length of a ``with`` block.

    The model is then one function: the same for every batch, of any size. Other threads and tasks
    that run the model meanwhile do not notice.

    Args:
        model: Converted model.
        estimator: Estimator of the draw; one that draws weights once.

    Returns:
        A context manager.

    Raises:
        ValueError: If a layer's noise cannot be held.

    Example:
        >>> import leanbayes as lb
        >>> x = torch.ones(1, 3)
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0))
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
        "held(model, lb.estimators.weights)",
    )
    with set_estimators({layer: Held(each, layer.op) for layer, each in drawn.items()}):
        yield
