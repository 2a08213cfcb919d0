"""Residual networks.

Strided convolutions and poolings pad both sides alike, as torch does; the TensorFlow originals pad
the far side only. Weights and their number are the same.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.lab.architectures import starts
from leanbayes.lab.architectures.base import Chain, register_architecture
from research.networks.starts import normal

Norm = Callable[[int], nn.Module]


def _convolution(inputs: int, filters: int, kernel: int, stride: int, bias: bool) -> nn.Conv2d:
    return nn.Conv2d(inputs, filters, kernel, stride, padding=kernel // 2, bias=bias)


def _dropout(rate: float) -> nn.Module:
    return nn.Dropout(rate) if rate else nn.Identity()


class PreActivationBlock(nn.Module):
    """Norm, ReLU and a 3 × 3 convolution, twice, added to a shortcut.

    An ``activated`` shortcut reads the activated input and always projects it (1 × 1); otherwise it
    reads the input itself and projects only where shapes differ. ``dropout`` is the rate before
    either 3 × 3 convolution.
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
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activated = activated
        self.norm1 = norm(inputs)
        self.drop1 = _dropout(dropout)
        self.conv1 = _convolution(inputs, filters, 3, stride, bias)
        self.norm2 = norm(filters)
        self.drop2 = _dropout(dropout)
        self.conv2 = _convolution(filters, filters, 3, 1, bias)
        self.shortcut: nn.Module = nn.Identity()
        if activated or stride != 1 or inputs != filters:
            self.shortcut = _convolution(inputs, filters, 1, stride, bias)

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.norm1(x).relu()
        y: Tensor = self.conv1(self.drop1(activated))
        y = self.conv2(self.drop2(self.norm2(y).relu()))
        shortcut: Tensor = self.shortcut(activated if self.activated else x)
        return y + shortcut


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolutions with norms, added to a shortcut, then ReLU.

    The stride is in the 3 × 3 convolution ("version 1.5"), and four times as many channels go out
    as there are filters.
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


def _groups(
    block: Callable[..., nn.Module], inputs: int, widths: Sequence[tuple[int, int]], growth: int = 1
) -> dict[str, nn.Module]:
    """Return groups of ``(filters, blocks)``; each but the first begins by halving the image."""
    groups: dict[str, nn.Module] = {}
    for i, (filters, count) in enumerate(widths, 1):
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        for j in range(1, count + 1):
            blocks[f"block{j}"] = block(inputs, filters, stride=2 if i > 1 and j == 1 else 1)
            inputs = growth * filters
        groups[f"group{i}"] = nn.Sequential(blocks)
    return groups


def _head(features: int, outputs: int, dropout: float = 0.0) -> dict[str, nn.Module]:
    return {
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        **({"drop": nn.Dropout(dropout)} if dropout else {}),
        "dense": nn.Linear(features, outputs),
    }


@register_architecture("resnet-tfp")
def tfp_resnet(
    outputs: int = 10, channels: int = 3, filters: Sequence[int] = (64, 128, 256, 512)
) -> Chain:
    """The "ResNet-18" of the k-tied supplement, from TensorFlow Probability's example: four
    pre-activation blocks.

    One block a stage (``block1`` to ``block4``), each with a projection shortcut. Weights and
    biases start at N(0, 0.1²) and normalization is that of Keras. With its moving statistics the
    mean-field network has the 9,814,026 parameters of the paper. Every stage but the first halves
    the image.
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


@register_architecture("wrn-28")
def wide_resnet(
    outputs: int = 10, width: int = 10, depth: int = 28, channels: int = 3, dropout: float = 0.0
) -> Chain:
    """WRN-28-k of the rank-1 paper: three groups of pre-activation blocks with 16k, 32k and 64k
    filters.

    WRN-28-10 has 36.5 M parameters. Weights start He normal. ``width`` is the k of WRN-28-k, and
    ``depth``, 6n + 4, its 28. Dropout is before 3 × 3 convolutions in blocks and before ``dense``.
    """
    require(
        depth >= 10 and depth % 6 == 4,
        f"depth is {depth}; it must be 6n + 4, for example 16, 22, 28 or 40",
    )
    require(width >= 1, f"width is {width}; it must be at least 1")
    require(0 <= dropout < 1, f"dropout is {dropout}; it must be at least 0 and below 1")
    block = partial(PreActivationBlock, norm=nn.BatchNorm2d, dropout=dropout)
    layers = {
        "stem": _convolution(channels, 16, 3, 1, False),
        **_groups(block, 16, [(k * width, (depth - 4) // 6) for k in (16, 32, 64)]),
        "norm": nn.BatchNorm2d(64 * width),
        "relu": nn.ReLU(),
        **_head(64 * width, outputs, dropout),
    }
    return Chain(layers, (channels, 32, 32), starts.HE_NORMAL)


@register_architecture("resnet-small")
def small_resnet(
    outputs: int = 10,
    channels: int = 1,
    filters: Sequence[int] = (16, 32, 96),
    dropout: float = 0.0,
) -> Chain:
    """A ResNet for small images that a CPU trains in minutes: one pre-activation block a stage.

    The stem halves the image, and so does every stage; ``filters`` are those of the stem, then of
    the stages. Weights start He normal. Dropout is as in :func:`wide_resnet`.
    """
    require(len(filters) >= 2, f"filters is {list(filters)}; give those of the stem and of a stage")
    require(0 <= dropout < 1, f"dropout is {dropout}; it must be at least 0 and below 1")
    block = partial(PreActivationBlock, norm=nn.BatchNorm2d, dropout=dropout, stride=2)
    layers: dict[str, nn.Module] = {"stem": _convolution(channels, filters[0], 3, 2, False)}
    for i, (inputs, wide) in enumerate(pairwise(filters), 1):
        layers[f"block{i}"] = block(inputs, wide)
    layers.update(norm=nn.BatchNorm2d(filters[-1]), relu=nn.ReLU())
    layers.update(_head(filters[-1], outputs, dropout))
    return Chain(layers, (channels, 28, 28), starts.HE_NORMAL)


@register_architecture("resnet-50")
def resnet50(outputs: int = 1000, channels: int = 3) -> Chain:
    """ResNet-50 of the rank-1 paper: groups of 3, 4, 6 and 3 bottlenecks; 25.6 M parameters.

    Convolutions start He normal and the dense layer at N(0, 0.01²).
    """
    layers = {
        "stem": _convolution(channels, 64, 7, 2, False),
        "norm": nn.BatchNorm2d(64),
        "relu": nn.ReLU(),
        "maxpool": nn.MaxPool2d(3, 2, padding=1),
        **_groups(Bottleneck, 64, [(64, 3), (128, 4), (256, 6), (512, 3)], growth=4),
        **_head(4 * 512, outputs),
    }
    first: dict[str, starts.Fill] = {
        "*.weight": starts.he_normal,
        "dense.weight": partial(normal, 0.01),
        "*.bias": starts.zeros,
    }
    return Chain(layers, (channels, 224, 224), first)
