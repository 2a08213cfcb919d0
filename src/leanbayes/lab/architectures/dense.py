"""Fully connected networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import nn

from leanbayes.errors import require, require_choice
from leanbayes.lab.architectures.base import (
    Chain,
    Fill,
    activation_of,
    fan_in_uniform,
    he_normal,
    zeros,
)

__all__ = ["mlp"]

_STARTS: dict[str, dict[str, Fill]] = {
    "he": {"*.weight": he_normal, "*.bias": zeros},
    "fan_in": {"*.weight": fan_in_uniform, "*.bias": fan_in_uniform},
}


def mlp(
    inputs: int = 784,
    hidden: Sequence[int] = (400, 400),
    outputs: int = 10,
    activation: str = "relu",
    start: Literal["he", "fan_in"] = "he",
) -> Chain:
    """Linear layers ``dense1``, ``dense2``, …: by default 784-400-400-10 of the k-tied paper,
    appendix E.

    Args:
        inputs: how many numbers an example has; images are flattened.
        hidden: the widths of the hidden layers.
        outputs: how many outputs there are.
        activation: ``"relu"``, ``"elu"``, ``"tanh"`` or ``"leaky_relu"``.
        start: first weights He normal with zero biases, or both uniform in ±1/√fan-in.

    Example:
        >>> [name for name, layer in mlp().named_children() if isinstance(layer, nn.Linear)]
        ['dense1', 'dense2', 'dense3']
    """
    require_choice("start", start, _STARTS)
    widths = [inputs, *hidden, outputs]
    require(min(widths) >= 1, f"widths are {widths}; each must be at least 1")
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for i, (fan_in, fan_out) in enumerate(pairwise(widths), 1):
        layers[f"dense{i}"] = nn.Linear(fan_in, fan_out)
        if i <= len(hidden):
            layers[f"activation{i}"] = activation_of(activation)
    return Chain(layers, (inputs,), _STARTS[start])
