"""Optimizers of recipes by name."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from leanbayes.lab.recipe import Optimizer
from leanbayes.registry import Registry

Groups = list[dict[str, Any]]

OPTIMIZERS = Registry[Callable[[Optimizer, nn.Module, int, Groups], torch.optim.Optimizer]](
    "optimizer", ("natural",)
)
"""Functions of a recipe's section, the model, the number of examples and the parameter groups."""


@OPTIMIZERS.register(name="adam")
def adam(spec: Optimizer, model: nn.Module, data_size: int, groups: Groups) -> torch.optim.Adam:
    """Return Adam."""
    return torch.optim.Adam(groups, betas=spec.betas)


@OPTIMIZERS.register(name="sgd")
def sgd(spec: Optimizer, model: nn.Module, data_size: int, groups: Groups) -> torch.optim.SGD:
    """Return gradient descent with momentum."""
    return torch.optim.SGD(groups, momentum=spec.momentum, nesterov=spec.nesterov)
