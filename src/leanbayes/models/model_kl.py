"""The KL of a whole model."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn

from leanbayes.distributions.kl import total_divergence
from leanbayes.errors import require
from leanbayes.layers import RandomMap
from leanbayes.models.random_maps import random_maps
from leanbayes.precision import full_precision

__all__ = ["kl", "named_kl"]


def named_kl(model: nn.Module) -> dict[str, Tensor]:
    """The KL of every random map, by name."""
    return {name: layer.kl() for name, layer in random_maps(model)}


def kl(model: nn.Module) -> Tensor:
    """The KL of the whole model: the sum over weights and layers, a function of the parameters.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0))
        >>> kl(model).shape
        torch.Size([])
    """
    layers = [layer for _, layer in random_maps(model)]
    require(bool(layers), "the model has no Bayesian layer; call lb.convert(model, …) first")
    if torch.compiler.is_compiling() or any(map(_has_its_own_kl, layers)):
        return torch.stack([layer.kl() for layer in layers]).sum()
    pairs = ((layer.posterior(), layer.prior()) for layer in layers)
    if not torch._C._is_any_autocast_enabled():
        return total_divergence(pairs)
    with ExitStack() as exact:
        for device in {layer.posterior.like.device for layer in layers}:
            exact.enter_context(full_precision(device))
        return total_divergence(pairs)


def _has_its_own_kl(layer: RandomMap) -> bool:
    """Whether a subclass says what the KL is, or FSDP gathers parameters around it."""
    return type(layer).kl is not RandomMap.kl or "kl" in vars(layer)
