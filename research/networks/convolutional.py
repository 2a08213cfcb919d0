"""The papers' convolutional networks without shortcuts."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

from torch import nn

from leanbayes.errors import require, require_choice
from leanbayes.lab.architectures import starts
from leanbayes.lab.architectures.base import Chain, activation_of, register_architecture
from research.networks.starts import glorot_uniform


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


@register_architecture("lenet")
def lenet(outputs: int = 100, channels: int = 3, size: int = 32, kernel: int = 5) -> Chain:
    """The LeNet of the k-tied paper: conv 32, conv 64, dense 512, dense 100 [k-tied suppl., D.1].

    Two poolings of two leave 8 × 8 × 64 = 4096 inputs of ``dense1``. The paper prints 3 × 3
    kernels; only 5 × 5 gives its parameter counts.
    """
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(channels, 32, kernel, padding="same"),
        "relu1": nn.ReLU(),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(32, 64, kernel, padding="same"),
        "relu2": nn.ReLU(),
        "pool2": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "dense1": nn.Linear(64 * pooled(size, 2) ** 2, 512),
        "relu3": nn.ReLU(),
        "dense2": nn.Linear(512, outputs),
    }
    return Chain(layers, (channels, size, size), starts.HE_NORMAL)


@register_architecture("lenet5-caffe")
def lenet5_caffe(
    outputs: int = 10,
    activation: str = "relu",
    bias: bool = False,
    norm: Literal["all", "dense1", "none"] = "all",
    affine: bool = True,
    dropout: float = 0.0,
) -> Chain:
    """LeNet-5-Caffe of the variance-networks paper for 28 × 28 images: ``conv1``, ``conv2``,
    ``dense1``, ``dense2``.

    Convolutions of 20 and 50 filters, 5 × 5 without padding, then 800-500-10. Which layers become
    variance layers is for the patterns of :func:`leanbayes.convert` to say.

    Args:
        outputs: number of classes.
        activation: ``"relu"``, or ``"tanh"`` as in appendix C.
        bias: whether layers have biases.
        norm: batch normalization after ``"all"`` layers but the last, after ``"dense1"`` only (the
            network whose layers are all variational dropout), or nowhere.
        affine: whether normalization learns a scale and a shift (off in appendix C).
        dropout: rate before ``dense1``; 0.5 in the network without variance layers.
    """
    require_choice("norm", norm, ("all", "dense1", "none"))
    layers: dict[str, nn.Module] = {}

    def then(name: str, layer: nn.Module, width: int) -> None:
        layers[name] = layer
        if norm == "all" or norm == name:
            kind = nn.BatchNorm1d if isinstance(layer, nn.Linear) else nn.BatchNorm2d
            layers[f"{name}_norm"] = kind(width, affine=affine)
        layers[f"{name}_activation"] = activation_of(activation)

    then("conv1", nn.Conv2d(1, 20, 5, bias=bias), 20)
    layers["pool1"] = nn.MaxPool2d(2)
    then("conv2", nn.Conv2d(20, 50, 5, bias=bias), 50)
    layers["pool2"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    if dropout:
        layers["dropout"] = nn.Dropout(dropout)
    then("dense1", nn.Linear(800, 500, bias=bias), 500)
    layers["dense2"] = nn.Linear(500, outputs, bias=bias)
    first = {
        "*.weight": starts.fan_in_uniform,
        "conv*.bias": starts.fan_in_uniform,
        "dense*.bias": starts.zeros,
    }
    return Chain(layers, (1, 28, 28), first)


register_architecture("lenet5-caffe-all-vdo")(partial(lenet5_caffe, bias=True, norm="dense1"))
register_architecture("lenet5-caffe-tanh")(partial(lenet5_caffe, activation="tanh", affine=False))

_VGG_FILTERS_AND_DROPOUT = (
    ((64, 0.3), (64, 0.0)),
    ((128, 0.4), (128, 0.0)),
    ((256, 0.4), (256, 0.4), (256, 0.0)),
    ((512, 0.4), (512, 0.4), (512, 0.0)),
    ((512, 0.0), (512, 0.0), (512, 0.0)),
)


@register_architecture("vgg")
def vgg(
    outputs: int = 10,
    width: float = 1.0,
    dropout: float = 1.0,
    tail: float | None = None,
    hidden: int | None = None,
    dense1: Literal["dropout", "variance"] = "dropout",
) -> Chain:
    """The VGG-like network of the variance-networks paper for 32 × 32 images: ``conv1`` to
    ``conv13``, then two dense.

    In the variance network ``conv11``, ``conv12``, ``conv13`` and ``dense1`` are layer-wise
    variational dropout. Normalization learns a shift and no scale.

    Args:
        outputs: number of classes.
        width: multiplies the numbers of filters and hidden units.
        dropout: multiplies the published dropout rates, which both networks have; a narrow network
            learns little under the full ones, and 0 leaves the layers out.
        tail: multiplies those of ``conv11`` to ``conv13`` and ``dense1``, the layers that become
            random and see 2 × 2 pixels only; ``width`` if not given.
        hidden: units of ``dense1``; as many as filters of ``conv13`` if not given. A variance layer
            tells a spread by its units together, so few units tell little.
        dense1: first weights of this layer as in the released code: of standard deviation 0.01 in
            the dropout network, of mean 0.01 and standard deviation 1 in the variance network.
    """
    require(int(64 * width) >= 1, f"width is {width}; it must leave at least one filter")
    require(0 <= dropout <= 1, f"dropout is {dropout}; it multiplies rates and is from 0 to 1")
    require(hidden is None or hidden >= 1, f"hidden is {hidden}; dense1 needs at least one unit")
    require_choice("dense1", dense1, ("dropout", "variance"))
    layers: dict[str, nn.Module] = {}
    channels, i = 3, 0
    last = width if tail is None else tail
    for block, convolutions in enumerate(_VGG_FILTERS_AND_DROPOUT, 1):
        for filters, rate in convolutions:
            i, wide = i + 1, int(filters * (last if block == 5 else width))
            layers[f"conv{i}"] = nn.Conv2d(channels, wide, 3, padding=1)
            layers[f"conv{i}_norm"] = _without_scale(nn.BatchNorm2d(wide, eps=1e-3))
            layers[f"conv{i}_relu"] = nn.ReLU()
            if rate and dropout:
                layers[f"conv{i}_dropout"] = nn.Dropout(rate * dropout)
            channels = wide
        layers[f"pool{block}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers |= _dense_layers_of_vgg(channels, hidden or channels, outputs, 0.5 * dropout)
    return Chain(layers, (3, 32, 32), _first_weights_of_vgg(dense1))


@register_architecture("vgg-small")
def vgg_small(outputs: int = 10, width: int = 1) -> Chain:
    """The VGG-like network of the matrix-normal paper: ``conv1`` to ``conv12``, then ``dense``.

    Four blocks of three 3 × 3 convolutions with 10, 20, 40 and 20 filters and ELU, each followed
    by pooling: 62,270 weights, and 246,940 at twice the width (sections 5.2 and 5.3). The paper
    does not say how weights start; here they do as torch has it.
    """
    require(width >= 1, f"width is {width}; it must be at least 1")
    blocks = [[width * filters] * 3 for filters in (10, 20, 40, 20)]
    return _elu_blocks(blocks, (3, 32, 32), outputs)


@register_architecture("fashion-cnn")
def fashion_cnn(outputs: int = 10) -> Chain:
    """The Fashion-MNIST network of the matrix-normal paper: ``conv1`` to ``conv4`` (10-20-40-80),
    then ``dense``.
    """
    return _elu_blocks([[10], [20], [40], [80]], (1, 28, 28), outputs)


def _elu_blocks(
    blocks: Sequence[Sequence[int]], input_shape: tuple[int, int, int], outputs: int
) -> Chain:
    """Return blocks of 3 × 3 convolutions with ELU and a pooling each, then a dense layer."""
    layers: dict[str, nn.Module] = {}
    (channels, size, _), i = input_shape, 0
    for block, filters in enumerate(blocks, 1):
        for wide in filters:
            i += 1
            layers[f"conv{i}"] = nn.Conv2d(channels, wide, 3, padding=1)
            layers[f"elu{i}"] = nn.ELU()
            channels = wide
        layers[f"pool{block}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["dense"] = nn.Linear(channels * pooled(size, len(blocks)) ** 2, outputs)
    return Chain(layers, input_shape, starts.FAN_IN_UNIFORM)


def _dense_layers_of_vgg(
    channels: int, hidden: int, outputs: int, rate: float
) -> dict[str, nn.Module]:
    return {
        **({"dense1_dropout": nn.Dropout(rate)} if rate else {}),
        "dense1": nn.Linear(channels, hidden),
        "dense1_norm": _without_scale(nn.BatchNorm1d(hidden, eps=1e-3)),
        "dense1_relu": nn.ReLU(),
        **({"dense2_dropout": nn.Dropout(rate)} if rate else {}),
        "dense2": nn.Linear(hidden, outputs),
    }


def _first_weights_of_vgg(dense1: str) -> dict[str, starts.Fill]:
    """As in the released code, where ``dense1`` of the variance network starts far from zero."""
    first: dict[str, starts.Fill] = {
        "conv*.weight": glorot_uniform,
        "dense*.weight": partial(starts.truncated_normal, 0.0, 0.01),
        "*.bias": starts.zeros,
    }
    if dense1 == "variance":
        first["dense1.weight"] = partial(starts.truncated_normal, 0.01, 1.0)
    return first


def _without_scale(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.Module:
    """Keep the scale at one, as ``tf.contrib.layers.batch_norm`` does."""
    norm.weight.requires_grad_(False)
    return norm


def pooled(size: int, times: int) -> int:
    """Return the size of an image after so many poolings by two."""
    left = size >> times
    require(left >= 1, f"images of size {size} are too small for {times} poolings")
    return left
