"""Report of a plan: the layers that stay deterministic, and the memory that is added."""

import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leanbayes.layers.base import Template, layer_kind
from leanbayes.layers.layer_spec import LayerSpec, Maker, SharedPriors
from leanbayes.posteriors import Posterior, Rank1

_TRIED = 2**20
"""Layers of up to so many numbers are made to be measured; torch needs seconds for its first
operation on the meta device, where larger ones take no memory."""


class KeptLayer(NamedTuple):
    """A layer that stays deterministic.

    Attributes:
        name: its dotted name in the model; the empty name is the model itself.
        kind: the name of its class.
        numbers: number of its parameters, without those of its parts.
        share: share of all parameters of the model.
        chosen: whether it could be random, and patterns leave it out.
    """

    name: str
    kind: str
    numbers: int
    share: float
    chosen: bool


def kept_layers(
    model: nn.Module, converted: Collection[nn.Module], convertible: Collection[nn.Module]
) -> tuple[KeptLayer, ...]:
    """Return the layers with parameters outside converted ones; a shared parameter counts once."""
    inside = {part for layer in converted for part in layer.modules()}
    possible = {part for layer in convertible for part in layer.modules()}
    total = sum(map(_numbers, model.parameters()))
    counted: set[nn.Parameter] = set()
    kept: list[KeptLayer] = []
    for name, module in model.named_modules():
        own = set() if module in inside else set(module.parameters(recurse=False)) - counted
        counted |= own
        if numbers := sum(map(_numbers, own)):
            kind, chosen = type(module).__name__, module in possible
            kept.append(KeptLayer(name, kind, numbers, numbers / total, chosen))
    return tuple(kept)


@torch.no_grad()
def added_bytes(module: nn.Module, choice: LayerSpec, shared: SharedPriors) -> int:
    """Count the bytes that the Bayesian counterpart of a layer adds."""
    before = _bytes(module.parameters()) + _bytes(module.buffers())
    numbers = sum(parameter.numel() for parameter in module.parameters())
    meta = numbers > _TRIED or any(p.device.type != "cpu" for p in module.parameters())
    known = {id(tensor) for prior in shared.values() for tensor in prior.parameters()}
    with torch.random.fork_rng(devices=[]):
        tried = Template(module).filled({}) if meta else module
        layer = layer_kind(module).from_torch(tried, Maker(choice, shared, checks=not meta))
    tensors = [*layer.parameters(), *layer.buffers()]
    return _bytes(tensor for tensor in tensors if id(tensor) not in known) - before


def _numbers(parameter: nn.Parameter) -> int:
    """Return how many a parameter has; none yet if its layer waits for a first batch."""
    return 0 if nn.parameter.is_lazy(parameter) else parameter.numel()


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def lines_of(kept: Sequence[KeptLayer]) -> Iterator[str]:
    """Yield what stays deterministic, line by line."""
    if kept:
        share = sum(layer.share for layer in kept)
        yield f"Deterministic, with {100 * share:.1f}% of the parameters:"
    width = max((len(layer.name) for layer in kept), default=0)
    for layer in kept:
        name = layer.name or "(the model)"
        yield f"{name:<{width}}  {layer.kind:<18} {layer.numbers:,} ({100 * layer.share:.1f}%)"


def size_of(count: float) -> str:
    """Return a number of bytes in words."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def warn_of_unknown(kept: Sequence[KeptLayer]) -> None:
    """Say it if most weights are in layers without a Bayesian kind."""
    unknown = sorted((k for k in kept if not k.chosen), key=lambda k: k.numbers, reverse=True)
    share = sum(layer.share for layer in unknown)
    if share > 0.5:
        largest = ", ".join(f"{layer.name or 'the model'} ({layer.kind})" for layer in unknown[:3])
        warnings.warn(
            f"{100 * share:.0f}% of the parameters stay as they were, because their layers have "
            f"no Bayesian counterpart: {largest}; print(lb.plan(…)) lists them, and "
            "lb.extend.register_layer adds a kind of layer",
            stacklevel=3,
        )


def rank1_advice(posteriors: Iterable[Posterior]) -> Iterator[str]:
    """Yield what the training loop of a mixture has to do, line by line."""
    rank1 = [posterior for posterior in posteriors if isinstance(posterior, Rank1)]
    members = sorted({posterior.members for posterior in rank1} - {1})
    if members:
        count = ", ".join(map(str, members))
        yield f"Repeat batches and targets for {count} members in a loop of your own: lb.tile."
    if any(posterior.weight_scale is None for posterior in rank1):
        yield (
            "Shared weights of rank-one layers have no prior: give the optimizer "
            "parameter_groups(model, lr, weight_decay=1e-4), or the posterior a weight_scale."
        )
