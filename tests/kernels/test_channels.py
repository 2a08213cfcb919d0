"""Convolutions with rank-one factors: a few examples at a time, where no gradient is recorded."""

import sys

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.kernels import native
from leanbayes.kernels.rank1 import ChannelsMap
from leanbayes.ops import Usage

pytestmark = pytest.mark.skipif(not native.is_native(), reason="native kernels were not built")
BATCH = 6
LAYERS = {
    "convolution": lambda: nn.Conv2d(4, 8, 3, padding=1),
    "strided": lambda: nn.Conv2d(4, 8, 3, 2),
    "grouped": lambda: nn.Conv2d(4, 8, 3, groups=2),
    "transposed": lambda: nn.ConvTranspose2d(4, 8, 3),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("factors", ["normal", ("none", "normal"), ("normal", "none")])
@pytest.mark.parametrize("examples", [1, 4, BATCH])
def test_parts_give_what_the_whole_batch_gives(name, factors, examples, monkeypatch):
    x = torch.randn(BATCH, 4, 7, 7)
    monkeypatch.setattr(sys.modules[ChannelsMap.__module__], "_IN_CACHE", examples * x[0].numel())
    model = lb.convert(LAYERS[name](), lb.Rank1(2, factors), lb.priors.Normal(0.1, loc=1.0))
    drawn = model.draw(Usage(BATCH, reused=True))
    assert isinstance(drawn, ChannelsMap)
    y = drawn(x)
    with torch.no_grad():
        torch.testing.assert_close(drawn(x), y.detach())
