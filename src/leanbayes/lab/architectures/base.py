"""Base of networks: the registry, and named layers with published first weights."""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from leanbayes.errors import choose, nearest, require
from leanbayes.lab.architectures.starts import Fill
from leanbayes.registry import Registry

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
    "leaky_relu": nn.LeakyReLU,
}


def activation_of(name: str) -> nn.Module:
    """Return a new activation layer, by name."""
    return choose("activation", name, _ACTIVATIONS)()


class Network(nn.Module):
    """A plain torch network with the first weights of its paper.

    Attributes:
        input_shape: the shape of one example.
        first_weights: start of the parameters, by pattern of their names; later patterns win, and
            normalization layers start as the identity.
    """

    input_shape: tuple[int, ...]
    first_weights: Mapping[str, Fill]

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw first weights, from a generator or (if not given) from the global seed."""
        steps: list[Callable[[], object]] = []
        for prefix, layer in self.named_modules():
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                steps.append(layer.reset_parameters)
                continue
            own = dict(layer.named_parameters(prefix, recurse=False))
            for name, parameter in own.items():
                fan_in = next(iter(own.values()))[0].numel()
                steps.append(partial(self._fill_of(name), parameter, fan_in, generator))
        for step in steps:
            step()

    def _fill_of(self, name: str) -> Fill:
        fills = [fill for rule, fill in self.first_weights.items() if fnmatchcase(name, rule)]
        if not fills:
            raise ValueError(f"{name!r} has no first value here; call reset before lb.convert")
        return fills[-1]


class Chain(Network):
    """Named layers, one after the other."""

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        input_shape: tuple[int, ...],
        first_weights: Mapping[str, Fill],
    ) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.input_shape = input_shape
        self.first_weights = first_weights
        self.reset()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


Builder = TypeVar("Builder", bound=Callable[..., Network])

_OF_PAPERS = (
    *("ehr-rnn", "fashion-cnn", "imdb-lstm", "lenet", "lenet5-caffe", "lenet5-caffe-all-vdo"),
    *("lenet5-caffe-tanh", "resnet-50", "resnet-small", "resnet-tfp", "small-cnn", "toy", "vae"),
    *("vgg", "vgg-small", "wrn-28"),
)

ARCHITECTURES = Registry[Callable[..., Network]]("architecture", _OF_PAPERS)
"""Every network by name; the options of each are the arguments of its builder."""


def register_architecture(name: str) -> Callable[[Builder], Builder]:
    """Add a network: ``build`` and recipes know it from then on.

    It decorates a function or class that makes a :class:`Network`.

    Args:
        name: name.

    ``docs/extending/architecture.py`` is one to copy.
    """
    return ARCHITECTURES.register(name=name)


def build(name: str, /, *, generator: torch.Generator | None = None, **options: Any) -> Network:
    """Build a network by name, with the first weights of its paper.

    Args:
        name: one of :data:`ARCHITECTURES`.
        generator: source of the first weights; the global seed if not given.
        **options: arguments of its builder.
    """
    builder = ARCHITECTURES[name]
    known = signature(builder).parameters
    for option in options:
        hint = nearest(option, known)
        require(option in known, f"architecture {name!r} has no option {option!r}{hint}")
    network = builder(**options)
    if generator is not None:
        network.reset(generator)
    return network
