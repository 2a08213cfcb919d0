"""The random maps of a model, by name."""

from collections.abc import Iterator

from torch import nn

from leanbayes.layers import RandomMap


def random_maps(model: nn.Module) -> Iterator[tuple[str, RandomMap]]:
    """Every random map of the model with its name; a shared layer comes once."""
    for name, module in model.named_modules():
        if isinstance(module, RandomMap):
            yield name, module
