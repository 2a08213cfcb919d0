"""The KL of a whole model."""

import torch
from torch import Tensor, nn

from leanbayes.distributions.kl import total_divergence
from leanbayes.errors import require
from leanbayes.layers import RandomMap
from leanbayes.models.random_maps import random_maps
from leanbayes.precision import full_precision


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
