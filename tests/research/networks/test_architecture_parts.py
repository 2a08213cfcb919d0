"""Inside the papers' networks: first weights and blocks."""

import math
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import truncnorm
from torch import nn

from leanbayes.testing import assert_mean
from research.networks import build
from research.networks.residual import Bottleneck, PreActivationBlock

torch.set_num_threads(1)

# first weights

drawn = cache(build)

CUT = truncnorm(-2, 2).var()
"""Variance of a standard normal cut at two standard deviations."""


def he(fan_in):
    return 0.0, 2 / fan_in, 2 * math.sqrt(2 / fan_in / CUT)


def flat(bound):
    return 0.0, bound**2 / 3, bound


FIRST = [
    ("mlp", {}, "dense1.weight", he(784)),
    ("mlp-elu", {}, "dense2.weight", flat(300**-0.5)),
    ("mlp-elu", {}, "dense2.bias", flat(300**-0.5)),
    ("lenet", {}, "conv2.weight", he(25 * 32)),
    ("lenet", {}, "dense2.weight", he(512)),
    ("lenet5-caffe", {}, "conv2.weight", flat(500**-0.5)),
    ("lenet5-caffe-all-vdo", {}, "dense1.weight", flat(800**-0.5)),
    ("lenet5-caffe-all-vdo", {}, "conv1.bias", flat(1 / 5)),
    ("vgg", {}, "conv5.weight", flat(math.sqrt(6 / (9 * 128 + 9 * 256)))),
    ("vgg", {}, "dense1.weight", (0.0, 1e-4 * CUT, 0.02)),
    ("vgg", {"dense1": "variance"}, "dense1.weight", (0.01, CUT, 2.01)),
    ("vgg", {"dense1": "variance"}, "dense2.weight", (0.0, 1e-4 * CUT, 0.02)),
    ("fashion-cnn", {}, "conv4.weight", flat((9 * 40) ** -0.5)),
    ("resnet-tfp", {}, "block3.conv1.weight", (0.0, 0.01, math.inf)),
    ("resnet-tfp", {}, "block4.conv1.bias", (0.0, 0.01, math.inf)),
    ("wrn-28", {"width": 1}, "group3.block2.conv1.weight", he(9 * 64)),
    ("wrn-28", {"width": 1}, "dense.weight", he(64)),
    ("resnet-small", {}, "block2.conv2.weight", he(9 * 96)),
    ("resnet-50", {}, "group1.block1.conv2.weight", he(9 * 64)),
    ("resnet-50", {}, "dense.weight", (0.0, 1e-4, math.inf)),
    ("imdb-lstm", {}, "embedding.weight", flat(0.05)),
    ("imdb-lstm", {}, "lstm.weight_ih_l0", flat(math.sqrt(6 / (128 + 512)))),
    ("imdb-lstm", {}, "dense.weight", flat(math.sqrt(6 / 129))),
    ("imdb-lstm", {"kernels": "he"}, "lstm.weight_hh_l0", he(128)),
]


@pytest.mark.parametrize(("name", "options", "parameter", "law"), FIRST)
def test_first_weights_have_the_published_law(name, options, parameter, law):
    mean, variance, bound = law
    values = drawn(name, **options).get_parameter(parameter).detach().double().flatten()
    assert_mean(values, mean, parameter)
    assert_mean((values - mean).square(), variance, f"{parameter}²")
    assert values.abs().max() <= bound * (1 + 1e-6)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("mlp", "dense1"),
        ("lenet5-caffe-all-vdo", "dense1"),
        ("vgg", "conv1"),
    ],
)
def test_biases_start_at_zero(name, pattern):
    assert not build(name).get_submodule(pattern).bias.any()


def test_lstm_starts_as_in_keras():
    lstm = build("imdb-lstm").lstm
    hidden = lstm.hidden_size
    gram = lstm.weight_hh_l0.mT @ lstm.weight_hh_l0
    torch.testing.assert_close(gram, torch.eye(hidden), atol=1e-5, rtol=0)
    expected = torch.zeros(4, hidden)
    expected[1] = 1.0  # input, forget, cell, output
    assert torch.equal(lstm.bias_ih_l0, expected.flatten())


def test_vgg_normalization_learns_a_shift_and_no_scale():
    norms = [m for m in build("vgg").modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert len(norms) == 14
    for norm in norms:
        assert (norm.weight == 1).all()
        assert (norm.weight.requires_grad, norm.bias.requires_grad) == (False, True)
        assert (norm.eps, norm.momentum) == (1e-3, 0.1)


def test_vgg_dropout_rates_are_as_published():
    rates = {n: m.p for n, m in build("vgg").named_children() if isinstance(m, nn.Dropout)}
    assert rates == {
        "conv1_dropout": 0.3,
        **{f"conv{i}_dropout": 0.4 for i in (3, 5, 6, 8, 9)},
        "dense1_dropout": 0.5,
        "dense2_dropout": 0.5,
    }
    assert not any(isinstance(m, nn.Dropout) for m in build("vgg", dropout=False).modules())


def test_tanh_lenet_without_biases_is_odd_up_to_its_poolings():
    net = build("lenet5-caffe-tanh").eval()
    assert all(p.ndim > 1 for p in net.parameters())
    for name in ("pool1", "pool2"):
        setattr(net, name, nn.AvgPool2d(2))
    x = torch.randn(3, 1, 28, 28)
    torch.testing.assert_close(net(-x), -net(x))


# blocks, against the formulas


def randomized(block):
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    return block.double()


def norm(layer, x):
    return F.batch_norm(x, None, None, layer.weight, layer.bias, True, eps=layer.eps)


@pytest.mark.parametrize("activated", [False, True])
@pytest.mark.parametrize(("inputs", "stride"), [(3, 2), (5, 1)])
def test_pre_activation_block(inputs, stride, activated):
    block = randomized(
        PreActivationBlock(inputs, 5, stride, norm=nn.BatchNorm2d, activated=activated)
    )
    x = torch.randn(2, inputs, 6, 6).double()
    a = norm(block.norm1, x).clamp_min(0)
    y = F.conv2d(a, block.conv1.weight, None, stride, 1)
    y = F.conv2d(norm(block.norm2, y).clamp_min(0), block.conv2.weight, None, 1, 1)
    source = a if activated else x
    if activated or stride == 2:
        source = F.conv2d(source, block.shortcut.weight, None, stride)
    torch.testing.assert_close(block(x), y + source)


@pytest.mark.parametrize(("inputs", "stride"), [(3, 2), (8, 1), (8, 2)])
def test_bottleneck(inputs, stride):
    block, x = randomized(Bottleneck(inputs, 2, stride)), torch.randn(2, inputs, 6, 6).double()
    y = norm(block.norm1, F.conv2d(x, block.conv1.weight)).clamp_min(0)
    y = norm(block.norm2, F.conv2d(y, block.conv2.weight, None, stride, 1)).clamp_min(0)
    y = norm(block.norm3, F.conv2d(y, block.conv3.weight))
    shortcut = x
    if inputs != 8 or stride != 1:
        shortcut = norm(block.shortcut_norm, F.conv2d(x, block.shortcut.weight, None, stride))
    torch.testing.assert_close(block(x), (y + shortcut).clamp_min(0))
