"""Residual networks.

Strided convolutions and poolings pad both sides alike, as torch does; the TensorFlow originals pad
the far side only. Weights and their number are the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.lab.architectures.base import Chain, Fill, he_normal, normal, zeros

__all__ = ["resnet50", "tfp_resnet", "wide_resnet"]

Norm = Callable[[int], nn.Module]


def _convolution(inputs: int, filters: int, kernel: int, stride: int, bias: bool) -> nn.Conv2d:
    return nn.Conv2d(inputs, filters, kernel, stride, padding=kernel // 2, bias=bias)


class PreActivationBlock(nn.Module):
    """Norm, ReLU and a 3 × 3 convolution, twice, added to a shortcut.

    Args:
        inputs: channels that come in.
        filters: channels that go out.
        stride: of the first convolution.
        norm: makes a normalisation layer.
        bias: whether convolutions have biases.
        activated: let the shortcut read the activated input and always project it (1 × 1);
            otherwise it reads the input itself and projects only where shapes differ.
    """

    def __init__(
        self,
        inputs: int,
        filters: int,
        stride: int,
        *,
        norm: Norm,
        bias: bool = False,
        activated: bool = False,
    ) -> None:
        super().__init__()
        self.activated = activated
        self.norm1 = norm(inputs)
        self.conv1 = _convolution(inputs, filters, 3, stride, bias)
        self.norm2 = norm(filters)
        self.conv2 = _convolution(filters, filters, 3, 1, bias)
        self.shortcut: nn.Module = nn.Identity()
        if activated or stride != 1 or inputs != filters:
            self.shortcut = _convolution(inputs, filters, 1, stride, bias)

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.norm1(x).relu()
        y: Tensor = self.conv2(self.norm2(self.conv1(activated)).relu())
        shortcut: Tensor = self.shortcut(activated if self.activated else x)
        return y + shortcut


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolutions with norms, added to a shortcut, then ReLU.

    The stride is in the 3 × 3 convolution ("version 1.5").

    Args:
        inputs: channels that come in.
        filters: channels of the first two convolutions; a quarter of what goes out.
        stride: of the second convolution.
    """

    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * filters
        self.conv1 = _convolution(inputs, filters, 1, 1, False)
        self.norm1 = nn.BatchNorm2d(filters)
        self.conv2 = _convolution(filters, filters, 3, stride, False)
        self.norm2 = nn.BatchNorm2d(filters)
        self.conv3 = _convolution(filters, outputs, 1, 1, False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        self.shortcut_norm: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = _convolution(inputs, outputs, 1, stride, False)
            self.shortcut_norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm1(self.conv1(x)).relu()
        y = self.norm2(self.conv2(y)).relu()
        y = self.norm3(self.conv3(y)) + self.shortcut_norm(self.shortcut(x))
        return y.relu()


def _group(blocks: Sequence[nn.Module]) -> nn.Sequential:
    return nn.Sequential(OrderedDict((f"block{i}", block) for i, block in enumerate(blocks, 1)))


def _head(features: int, outputs: int) -> dict[str, nn.Module]:
    return {
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "dense": nn.Linear(features, outputs),
    }


def tfp_resnet(
    outputs: int = 10, channels: int = 3, filters: Sequence[int] = (64, 128, 256, 512)
) -> Chain:
    """The "ResNet-18" of the k-tied supplement, from TensorFlow Probability's example: four
    pre-activation blocks.

    One block a stage (``block1`` to ``block4``), each with a projection shortcut. Weights and
    biases start at N(0, 0.1²) and normalisation is that of Keras. With its moving statistics the
    mean-field network has the 9 814 026 parameters of the paper.

    Args:
        outputs: how many classes there are.
        channels: of the images.
        filters: of the four stages; every stage but the first halves the image.
    """
    require(len(filters) >= 1, "filters is empty; give the width of each stage")
    norm = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)
    layers: dict[str, nn.Module] = {"stem": _convolution(channels, filters[0], 3, 1, True)}
    inputs = filters[0]
    for i, wide in enumerate(filters, 1):
        stride = 1 if i == 1 else 2
        layers[f"block{i}"] = PreActivationBlock(
            inputs, wide, stride, norm=norm, bias=True, activated=True
        )
        inputs = wide
    layers.update(norm=norm(inputs), relu=nn.ReLU(), **_head(inputs, outputs))
    first = {"*.weight": partial(normal, 0.1), "*.bias": partial(normal, 0.1)}
    return Chain(layers, (channels, 32, 32), first)


def wide_resnet(outputs: int = 10, width: int = 10, depth: int = 28, channels: int = 3) -> Chain:
    """WRN-28-k of the rank-1 paper: three groups of pre-activation blocks with 16k, 32k and 64k
    filters.

    WRN-28-10 has 36.5 M parameters. Weights start He normal.

    Args:
        outputs: how many classes there are.
        width: the k of WRN-28-k.
        depth: how many 3 × 3 and projection layers are counted in the name, 6n + 4.
        channels: of the images.
    """
    require(
        depth >= 10 and depth % 6 == 4,
        f"depth is {depth}; it must be 6n + 4, for example 16, 22, 28 or 40",
    )
    require(width >= 1, f"width is {width}; it must be at least 1")
    layers: dict[str, nn.Module] = {"stem": _convolution(channels, 16, 3, 1, False)}
    inputs = 16
    for i in (1, 2, 3):
        filters, blocks = 16 * width * 2 ** (i - 1), []
        for j in range((depth - 4) // 6):
            stride = 2 if i > 1 and j == 0 else 1
            blocks.append(PreActivationBlock(inputs, filters, stride, norm=nn.BatchNorm2d))
            inputs = filters
        layers[f"group{i}"] = _group(blocks)
    layers.update(norm=nn.BatchNorm2d(inputs), relu=nn.ReLU(), **_head(inputs, outputs))
    return Chain(layers, (channels, 32, 32), {"*.weight": he_normal, "*.bias": zeros})


def resnet50(outputs: int = 1000, channels: int = 3) -> Chain:
    """ResNet-50 of the rank-1 paper: groups of 3, 4, 6 and 3 bottlenecks; 25.6 M parameters.

    Convolutions start He normal and the dense layer at N(0, 0.01²).

    Args:
        outputs: how many classes there are.
        channels: of the images.
    """
    layers: dict[str, nn.Module] = {
        "stem": _convolution(channels, 64, 7, 2, False),
        "norm": nn.BatchNorm2d(64),
        "relu": nn.ReLU(),
        "maxpool": nn.MaxPool2d(3, 2, padding=1),
    }
    inputs = 64
    for i, count in enumerate((3, 4, 6, 3), 1):
        filters, blocks = 32 * 2**i, []
        for j in range(count):
            blocks.append(Bottleneck(inputs, filters, 2 if i > 1 and j == 0 else 1))
            inputs = 4 * filters
        layers[f"group{i}"] = _group(blocks)
    layers.update(_head(inputs, outputs))
    first: dict[str, Fill] = {
        "*.weight": he_normal,
        "dense.weight": partial(normal, 0.01),
        "*.bias": zeros,
    }
    return Chain(layers, (channels, 224, 224), first)
