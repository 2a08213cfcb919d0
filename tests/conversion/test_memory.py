"""A conversion copies every weight once."""

import torch
from torch import nn

import leanbayes as lb
from leanbayes.layers import Affine
from research.measuring.harness import peak_memory


def network():
    return nn.Sequential(nn.Embedding(500, 64), *(nn.Linear(64, 64) for _ in range(20)))


def test_a_conversion_takes_the_memory_of_one_copy():
    net = network()
    weights = sum(p.numel() * p.element_size() for p in net.parameters())
    tied = lb.count_parameters(lb.convert(net)).total / sum(p.numel() for p in net.parameters())
    assert peak_memory(lambda: lb.convert(net)) <= (tied + 0.1) * weights


def test_no_parameter_of_a_copy_lies_in_memory_of_the_given_network():
    net = nn.Sequential(network(), nn.MultiheadAttention(64, 4), nn.LSTM(64, 64), nn.LayerNorm(64))
    model = lb.convert(net, bias=lb.MeanField())
    mine, theirs = (
        {p.untyped_storage().data_ptr() for p in each.parameters()} for each in (model, net)
    )
    assert mine.isdisjoint(theirs)


def test_a_layer_kind_that_keeps_a_parameter_gets_a_copy(monkeypatch):
    original = Affine.from_torch.__func__

    def keeping(cls, module, make):
        layer = original(cls, module, make)
        layer.bias = module.bias  # no clone
        return layer

    monkeypatch.setattr(Affine, "from_torch", classmethod(keeping))
    net = nn.Sequential(nn.Linear(3, 2))
    model = lb.convert(net)
    with torch.no_grad():
        model[0].bias.add_(1.0)
    assert not torch.equal(model[0].bias, net[0].bias)
