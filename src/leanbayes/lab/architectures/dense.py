"""Fully connected networks."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Literal

from torch import nn

from leanbayes.errors import choose, require
from leanbayes.lab.architectures import starts
from leanbayes.lab.architectures.base import Chain, activation_of, register_architecture


@register_architecture("mlp")
def mlp(
    inputs: int = 784,
    hidden: Sequence[int] = (400, 400),
    outputs: int = 10,
    activation: str = "relu",
    start: Literal["he", "fan_in"] = "he",
) -> Chain:
    """Linear layers ``dense1``, ``dense2``, …: by default 784-400-400-10 of the k-tied paper,
    appendix E.

    Images are flattened. First weights are He normal with zero biases, or both uniform in
    ±1/√fan-in.
    """
    first = choose("start", start, {"he": starts.HE_NORMAL, "fan_in": starts.FAN_IN_UNIFORM})
    widths = [inputs, *hidden, outputs]
    require(min(widths) >= 1, f"widths are {widths}; each must be at least 1")
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for i, (fan_in, fan_out) in enumerate(pairwise(widths), 1):
        layers[f"dense{i}"] = nn.Linear(fan_in, fan_out)
        if i <= len(hidden):
            layers[f"activation{i}"] = activation_of(activation)
    return Chain(layers, (inputs,), first)


register_architecture("mlp-elu")(
    partial(mlp, hidden=(300, 300, 300), activation="elu", start="fan_in")
)
