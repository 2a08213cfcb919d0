"""What the papers' networks share: named layers, and first weights by rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import Tensor, nn

from leanbayes.errors import require_choice

__all__ = ["Chain", "Fill", "Network", "activation_of"]

Fill = Callable[[Tensor, int, torch.Generator | None], object]
"""Fills a parameter in place, given the fan-in of its layer and a generator."""

_STD_OF_NORMAL_CUT_AT_TWO = 0.87962566103423978


def zeros(tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Zero."""
    nn.init.zeros_(tensor)


def he_normal(tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Normal with variance 2 / fan-in, cut at two standard deviations as Keras does."""
    truncated_normal(
        0.0, math.sqrt(2 / fan_in) / _STD_OF_NORMAL_CUT_AT_TWO, tensor, fan_in, generator
    )


def truncated_normal(
    mean: float, std: float, tensor: Tensor, fan_in: int, generator: torch.Generator | None
) -> None:
    """Normal, cut at two standard deviations."""
    nn.init.trunc_normal_(tensor, mean, std, mean - 2 * std, mean + 2 * std, generator)


def normal(std: float, tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Normal around zero."""
    nn.init.normal_(tensor, 0.0, std, generator)


def uniform(bound: float, tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Uniform in ±bound."""
    nn.init.uniform_(tensor, -bound, bound, generator)


def fan_in_uniform(tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Uniform in ±1/√fan-in, which is torch's own choice for linear and convolutional layers."""
    uniform(1 / math.sqrt(fan_in), tensor, fan_in, generator)


def glorot_uniform(tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Uniform with variance 2 / (fan-in + fan-out)."""
    nn.init.xavier_uniform_(tensor, generator=generator)


def orthogonal(tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Orthonormal columns (or rows, if there are fewer of them)."""
    nn.init.orthogonal_(tensor, generator=generator)


def unit_forget_bias(tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Zero, but one for the forget gate of an LSTM, which comes second."""
    nn.init.zeros_(tensor)
    nn.init.ones_(tensor.chunk(4)[1])


def padded(fill: Fill, tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Another rule, with zeros in the row of the padding index."""
    fill(tensor, fan_in, generator)
    nn.init.zeros_(tensor[0])


_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
    "leaky_relu": nn.LeakyReLU,
}


def activation_of(name: str) -> nn.Module:
    """A new activation layer, by name."""
    require_choice("activation", name, _ACTIVATIONS)
    return _ACTIVATIONS[name]()


class Network(nn.Module):
    """A plain torch network with the first weights of its paper.

    Attributes:
        input_shape: the shape of one example.
        first_weights: how parameters start, by pattern of their names; later patterns win, and
            normalisation layers start as the identity.
    """

    input_shape: tuple[int, ...]
    first_weights: Mapping[str, Fill]

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw first weights, from a generator or (if not given) from the global seed."""
        steps: list[Callable[[], object]] = []
        for prefix, layer in self.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
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
    """Named layers, one after the other.

    Args:
        layers: the layers by name, in their order.
        input_shape: the shape of one example.
        first_weights: how parameters start, by pattern of their names.
    """

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
