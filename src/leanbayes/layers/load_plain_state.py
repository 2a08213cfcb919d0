"""The state dict of a plain network, read by the layers of a converted one as means."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.layers.layer_spec import LayerSpec, Maker
from leanbayes.layers.random_map import RandomMap
from leanbayes.posteriors import Point
from leanbayes.priors import Flat


@torch.no_grad()
def take_plain(layer: Any, state: MutableMapping[str, Tensor], prefix: str) -> None:
    """Put a layer's own tensors where a state dict has those of its torch layer.

    Weights become means, and everything else that is learnt stays as it is. A state dict that has
    a posterior of this layer, or not all tensors of the torch layer, is left alone.

    Args:
        layer: a :class:`~leanbayes.extend.Layer`, which loads by this function.
        state: the state dict.
        prefix: what the names of the layer's tensors begin with.
    """
    if layer.template is None:
        return
    own, names = layer.state_dict(), layer.template.names
    begun = any(name.startswith(prefix) and ".posterior." in f".{name}" for name in state)
    if begun or not all(f"{prefix}{name}" in state for name in names):
        return
    tensors = {name: state.pop(f"{prefix}{name}") for name in names}
    given = _means(layer, tensors)
    for name, tensor in own.items():
        state[f"{prefix}{name}"] = given.get(name, tensor)


def _means(layer: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The means and plain biases that a layer would have, were it made from these tensors."""
    maps = _maps(layer)
    bias = Point() if any("bias" in name for name in maps) else None
    plain = layer.template.filled({n: nn.Parameter(t, False) for n, t in tensors.items()})
    choice = LayerSpec(Point(), Flat(), bias=bias, bias_prior=Flat())
    made = type(layer).from_torch(plain, Maker(choice, {}))
    found: dict[str, Tensor] = {}
    for name, part in maps.items():
        means, (value,) = part.posterior.tensors("means"), _maps(made)[name].posterior.parameters()
        require(
            len(means) == 1 and next(iter(means.values())).shape == value.shape,
            f"{part.posterior.spec!r} has no means of weights, so a plain state dict cannot be "
            "loaded into it; load that into the network and convert it",
        )
        found[".".join(filter(None, (name, "posterior", *means)))] = value
    for name, value in made.named_parameters():
        if ".posterior." not in f".{name}":  # a plain bias, of which every member has a copy
            found[name] = value.expand_as(layer.get_parameter(name))
    return found


def _maps(layer: nn.Module) -> dict[str, RandomMap]:
    return {name: part for name, part in layer.named_modules() if isinstance(part, RandomMap)}
