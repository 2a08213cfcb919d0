"""Errors that ``python -m research trust mutants`` planted, and no test noticed."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import leanbayes as lb
from leanbayes.distributions import KTiedNormal, LocationScale
from leanbayes.kernels import add_k_tied_variance, native, without_native
from leanbayes.kernels.noise import Sharing, windows
from leanbayes.kernels.rank1 import ChannelsMap, NormalFactor
from leanbayes.layers import recurrent
from leanbayes.ops import Conv, Usage

PRIOR = lb.priors.Normal(0.1, loc=1.0)

needs_native = pytest.mark.skipif(not native.is_native(), reason="native kernels were not built")


@needs_native
@pytest.mark.parametrize("posterior", [lb.Rank1(1), lb.Rank1(2, ("none", "normal"), batch="tile")])
def test_slopes_of_initial_states_of_an_lstm_are_those_of_the_loop(posterior, monkeypatch):
    model = lb.convert(nn.LSTM(5, 8), posterior, PRIOR)
    drawn = {name: model.map(name).draw(Usage(4, reused=True)) for name in model.maps}
    model._draw = lambda usage: drawn
    x, weight = torch.randn(6, 4, 5), torch.randn(6, 4, 8)
    states = tuple(torch.randn(1, 4, 8, requires_grad=True) for _ in range(2))
    learned = [p for p in model.parameters() if p.requires_grad]

    def slopes():
        total = (model(x, states)[0] * weight).sum()
        return torch.autograd.grad(total, (*states, *learned), allow_unused=True, retain_graph=True)

    fused = slopes()
    monkeypatch.setattr(recurrent, "factored_lstm", lambda *_: None)
    looped = slopes()
    assert all(float(slope.abs().max()) > 0.01 for slope in looped[:2])
    for one, other in zip(fused, looped, strict=True):
        torch.testing.assert_close(one, other, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("family", ["k_tied", "mean_field"])
def test_second_slopes_of_a_native_kl_are_those_of_the_formula(family, learned):
    rows, columns = torch.rand(2, 3) + 0.5, torch.rand(2, 4) + 0.5
    tensors = [torch.randn(3, 4), *((rows, columns) if family == "k_tied" else (rows.T @ columns,))]
    tensors = [*tensors, torch.tensor(0.7)] if learned else tensors
    for tensor in tensors:
        tensor.requires_grad_()

    def curvatures():
        made = KTiedNormal if family == "k_tied" else LocationScale
        q = made(*(tensors[:-1] if learned else tensors))
        prior = Normal(torch.tensor(0.3), tensors[-1] if learned else torch.tensor(0.7))
        slopes = torch.autograd.grad(kl_divergence(q, prior), tensors, create_graph=True)
        weighted = sum((slope * slope.detach().cos()).sum() for slope in slopes)
        return torch.autograd.grad(weighted, tensors)

    found = curvatures()
    with without_native():
        expected = curvatures()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@needs_native
def test_channels_are_scaled_in_predictions_as_in_training():
    torch.manual_seed(0)
    map_of = lb.convert(nn.Conv2d(2, 3, 3), lb.Rank1(2, batch="tile"), PRIOR)
    drawn = lb.estimators.local(map_of.posterior(), map_of.op, Usage(4, reused=False))
    assert isinstance(drawn, ChannelsMap)
    x = torch.randn(4, 2, 5, 5)
    trained = drawn(x)
    with torch.no_grad():
        torch.testing.assert_close(drawn(x), trained.detach())
        plain = drawn.op(x * drawn.s[..., None, None], drawn.weight) * drawn.r[..., None, None]
        torch.testing.assert_close(trained, plain)
        one = replace(drawn, r=drawn.r[:1], s=drawn.s[:1], members=1)
        scaled = drawn.op(x * one.s[..., None, None], drawn.weight) * one.r[..., None, None]
        torch.testing.assert_close(one(x), scaled)


def test_a_number_of_noise_is_shared_by_as_many_examples_as_asked():
    for width, each in ((5, 2), (7, 3), (4, 4), (3, 9)):
        found = windows(Sharing(1, 12, each), width, torch.empty(0))
        _, counts = found.unique(return_counts=True)
        assert found.shape == (1, 12, width)
        assert int(counts.max()) == min(each, width)


@needs_native
@pytest.mark.parametrize(
    ("op", "width"), [(Conv((2, 2), groups=2), 4), (Conv((2, 2, 2)), 16)], ids=["groups", "volumes"]
)
def test_variances_without_a_kernel_are_left_to_torch(op, width):
    inputs = torch.rand(2, 2, *((4,) * op.dims))
    q = KTiedNormal(torch.zeros(4, width), torch.rand(1, 4), torch.rand(1, width))
    out = torch.zeros(2, 4, *((3,) * op.dims))
    with torch.no_grad():
        assert add_k_tied_variance(out, q, op, inputs) is False
    assert not out.any()


def test_a_factor_that_is_frozen_passes_slopes_of_its_input_on():
    loc, scale = torch.ones(1, 3), torch.full((1, 3), 0.1)
    noise, x = torch.randn(4, 3), torch.randn(4, 3, requires_grad=True)
    factors = NormalFactor(loc, scale, math.inf, 4, noise)
    factors.times(x).sum().backward()
    torch.testing.assert_close(x.grad, factors.rows())
