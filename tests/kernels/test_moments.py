"""Kernels of one-pass moments against the formulas in double precision."""

import pytest
import torch

import leanbayes as lb
from leanbayes.distributions import KTiedNormal
from leanbayes.kernels import without_native
from leanbayes.prediction.one_pass import Uncertain


def moments(*shape):
    return torch.randn(shape), torch.rand(shape) + 0.1


@pytest.mark.skipif(not lb.kernels().native, reason="there is no native library")
@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("is_uncertain", [False, True])
@pytest.mark.parametrize("shape", [(5, 37), (2, 3, 37)])
def test_variances_of_k_tied_weights(monkeypatch, rank, is_uncertain, shape):
    from leanbayes.ops import Linear
    from leanbayes.prediction.one_pass import weights

    calls, kernel = [], weights.add_k_tied_variance
    monkeypatch.setattr(
        weights, "add_k_tied_variance", lambda *a: calls.append(kernel(*a)) or calls[-1]
    )
    q = KTiedNormal(torch.randn(21, 37), torch.rand(rank, 21), torch.rand(rank, 37))
    m, v = moments(*shape)
    x = Uncertain(m, v) if is_uncertain else m
    with torch.no_grad():
        fast = weights.output_moments(q, Linear(), x)
        with without_native():
            formula = weights.output_moments(q, Linear(), x)
    assert calls == [True, False]
    torch.testing.assert_close(fast.loc, formula.loc)
    torch.testing.assert_close(fast.variance, formula.variance)


@pytest.mark.parametrize("function", [torch.sigmoid, torch.tanh])
def test_sigmoids(function):
    loc, variance = 4 * torch.randn(3, 700), 10 ** torch.linspace(-6, 1.5, 2100).view(3, 700)
    exact = function(Uncertain(loc.double(), variance.double()))
    with torch.no_grad():
        fast = function(Uncertain(loc, variance))
        with without_native():
            formula = function(Uncertain(loc, variance))
    for y in (fast, formula):
        torch.testing.assert_close(y.loc.double(), exact.loc, rtol=0, atol=1e-6)
        torch.testing.assert_close(y.variance.double(), exact.variance, rtol=1e-3, atol=1e-8)
