"""Cut a network where its noise begins, so that what comes before is computed once."""

import copy
from collections import OrderedDict
from typing import NamedTuple

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from leanbayes.errors import choose
from leanbayes.lab.architectures.base import Chain
from leanbayes.models.random_maps import random_maps


class Cut(NamedTuple):
    """A network in two parts that share its weights: ``after(before(x))`` is the network.

    Attributes:
        before: what comes before the cut.
        after: the rest; its layers have the names that they have in the network.
    """

    before: nn.Module
    after: nn.Module


def cut_at(model: nn.Module, name: str) -> Cut:
    """Cut layers that follow one another before the one of this name.

    Example:
        >>> from research.networks import build
        >>> [list(dict(part.named_children())) for part in cut_at(build("mlp"), "dense3")]
        [['flatten', 'dense1', 'activation1', 'dense2', 'activation2'], ['dense3']]
    """
    layers = list(model.named_children())
    place = choose("layer", name, {layer: index for index, (layer, _) in enumerate(layers)})
    return Cut(*(nn.Sequential(OrderedDict(part)) for part in (layers[:place], layers[place:])))


def cut(model: nn.Module) -> Cut:
    """Cut a chain before its first layer that draws, or its first dropout if none does.

    Of a chain that has neither, nothing is left after the cut. A network whose layers do not
    simply follow one another stays whole, after nothing.
    """
    if not isinstance(model, Chain):
        return Cut(nn.Identity(), model)
    layers = dict(model.named_children())
    noisy = [name for name, layer in layers.items() if draws(layer)]
    noisy += [name for name, layer in layers.items() if isinstance(layer, _DropoutNd)]
    return cut_at(model, noisy[0]) if noisy else Cut(model, nn.Sequential())


def draws(model: nn.Module) -> bool:
    """Return whether a network has random layers that are not points."""
    return any(bool(layer.posterior().variance.any()) for _, layer in random_maps(model))


def has_dropout(model: nn.Module) -> bool:
    """Return whether a network has dropout layers."""
    return any(isinstance(layer, _DropoutNd) for layer in model.modules())


def with_batch_statistics(model: nn.Module) -> nn.Module | None:
    """Return a copy that normalizes by the statistics of each batch in eval mode too.

    The published code evaluates so. A network without batch normalization gives ``None``.
    """
    model = copy.deepcopy(model)
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    for layer in layers:
        layer.running_mean = layer.running_var = None
    return model if layers else None
