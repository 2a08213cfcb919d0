"""Errors that ``python -m research trust mutants`` planted, and no test noticed."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.kernels import native
from leanbayes.layers import recurrent
from leanbayes.ops import Usage

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
    fused = torch.autograd.grad((model(x, states)[0] * weight).sum(), states)
    monkeypatch.setattr(recurrent, "factored_lstm", lambda *_: None)
    looped = torch.autograd.grad((model(x, states)[0] * weight).sum(), states)
    for one, other in zip(fused, looped, strict=True):
        assert float(other.abs().max()) > 0.01
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
