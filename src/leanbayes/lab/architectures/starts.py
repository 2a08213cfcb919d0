"""First weights by rule: each fills a parameter in place."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

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


def uniform(bound: float, tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Uniform in ±bound."""
    nn.init.uniform_(tensor, -bound, bound, generator)


def fan_in_uniform(tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Uniform in ±1/√fan-in, which is torch's own choice for linear and convolutional layers."""
    uniform(1 / math.sqrt(fan_in), tensor, fan_in, generator)


HE_NORMAL: dict[str, Fill] = {"*.weight": he_normal, "*.bias": zeros}
FAN_IN_UNIFORM: dict[str, Fill] = {"*.weight": fan_in_uniform, "*.bias": fan_in_uniform}
