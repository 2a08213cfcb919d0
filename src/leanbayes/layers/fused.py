"""Torch's fused transformer layers, which would read weights past the posterior."""

from __future__ import annotations

import warnings

import torch.nn.functional as F
from torch import nn

from leanbayes.layers.random_map import RandomMap

__all__ = ["settle_fused_path"]


def settle_fused_path(module: nn.Module) -> None:
    """Let a transformer's encoder (layer) run fused if torch would and nothing in it is random."""
    random = any(isinstance(part, RandomMap) for part in module.modules())
    if isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0 if random else _fused_activation(module)
    elif isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = not random and _may_nest(module)


def _fused_activation(layer: nn.TransformerEncoderLayer) -> int:
    """As torch numbers the activations that it can fuse."""
    activation = layer.activation
    if activation is F.relu or isinstance(activation, nn.ReLU):
        return 1
    return 2 if activation is F.gelu or isinstance(activation, nn.GELU) else 0


def _may_nest(encoder: nn.TransformerEncoder) -> bool:
    """What torch decides for a new encoder of such layers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        enabled = encoder.enable_nested_tensor
        empty = nn.TransformerEncoder(encoder.layers[0], 0, enable_nested_tensor=enabled)
    return empty.use_nested_tensor
