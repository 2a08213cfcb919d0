"""A convolutional network for small images."""

from collections.abc import Sequence

from torch import nn

from leanbayes.errors import require
from leanbayes.lab.architectures import starts
from leanbayes.lab.architectures.base import Chain, register_architecture


@register_architecture("small-cnn")
def small_cnn(
    outputs: int = 10,
    filters: Sequence[int] = (16, 32, 64),
    hidden: int = 128,
    dropout: float = 0.0,
) -> Chain:
    """Build a network for 32 × 32 images that one core trains in minutes: three convolutions,
    ``dense1`` and ``dense2``.

    It has the parts of the VGG-like network of the variance-networks paper, and few of them: 3 × 3
    convolutions, pooled before they are normalized, which is cheaper, and two dense layers with
    dropout before either.
    """
    layers: dict[str, nn.Module] = {}
    channels = 3
    for i, wide in enumerate(filters, 1):
        layers[f"conv{i}"] = nn.Conv2d(channels, wide, 3, padding=1)
        layers[f"pool{i}"] = nn.MaxPool2d(2)
        layers[f"conv{i}_norm"] = nn.BatchNorm2d(wide)
        layers[f"conv{i}_relu"] = nn.ReLU()
        channels = wide
    layers["flatten"] = nn.Flatten()
    if dropout:
        layers["dense1_dropout"] = nn.Dropout(dropout)
    layers["dense1"] = nn.Linear(channels * pooled(32, len(filters)) ** 2, hidden)
    layers["dense1_norm"] = nn.BatchNorm1d(hidden)
    layers["dense1_relu"] = nn.ReLU()
    if dropout:
        layers["dense2_dropout"] = nn.Dropout(dropout)
    layers["dense2"] = nn.Linear(hidden, outputs)
    return Chain(layers, (3, 32, 32), starts.FAN_IN_UNIFORM)


def pooled(size: int, times: int) -> int:
    """Return the size of an image after so many poolings by two."""
    left = size >> times
    require(left >= 1, f"images of size {size} are too small for {times} poolings")
    return left
