"""Kernels of one-pass moments against the formulas in double precision."""

import math

import pytest
import torch
import torch.nn.functional as F

import leanbayes as lb
from leanbayes.distributions import KTiedNormal
from leanbayes.kernels import without_native
from leanbayes.ops import Conv, Linear
from leanbayes.prediction.one_pass import Uncertain


def moments(*shape):
    return torch.randn(shape), torch.rand(shape) + 0.1


NATIVE = pytest.mark.skipif(not lb.kernels().native, reason="there is no native library")


@pytest.fixture
def calls(monkeypatch):
    """What the kernel of variances returned, in order."""
    from leanbayes.prediction.one_pass import weights

    found, kernel = [], weights.add_k_tied_variance
    monkeypatch.setattr(
        weights, "add_k_tied_variance", lambda *a: found.append(kernel(*a)) or found[-1]
    )
    return found


def assert_fused(calls, q, op, m, v):
    from leanbayes.prediction.one_pass.weights import output_moments

    x = m if v is None else Uncertain(m, v)
    with torch.no_grad():
        fast = output_moments(q, op, x)
        with without_native():
            formula = output_moments(q, op, x)
    assert calls == [True, False]
    torch.testing.assert_close(fast.loc, formula.loc)
    torch.testing.assert_close(fast.variance, formula.variance)


@NATIVE
@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("is_uncertain", [False, True])
@pytest.mark.parametrize("shape", [(5, 37), (2, 3, 37)])
def test_variances_of_k_tied_weights(calls, rank, is_uncertain, shape):
    q = KTiedNormal(torch.randn(21, 37), torch.rand(rank, 21), torch.rand(rank, 37))
    m, v = moments(*shape)
    assert_fused(calls, q, Linear(), m, v if is_uncertain else None)


CONVOLUTIONS = {
    "3 × 3": (Conv((3, 3), padding=(1, 1)), (9, 11)),
    "strides": (Conv((3, 2), (2, 3), (1, 0)), (9, 23)),
    "gaps": (Conv((3, 3), (2, 1), (2, 3), (3, 2)), (40, 37)),
    "one tap": (Conv((1, 1), (2, 2)), (8, 8)),
    "same": (Conv((5, 3), padding="same"), (5, 33)),
    "many rows": (Conv((5, 1), padding=(2, 0)), (3000, 17)),
    "one dimension": (Conv((5,), (2,), (2,)), (29,)),
}


@NATIVE
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize("is_uncertain", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_variances_of_k_tied_convolutions(calls, rank, is_uncertain, name):
    op, size = CONVOLUTIONS[name]
    columns = 5 * math.prod(op.kernel_size)
    q = KTiedNormal(torch.randn(7, columns), torch.rand(rank, 7), torch.rand(rank, columns))
    m, v = moments(3, 5, *size)
    assert_fused(calls, q, op, m, v if is_uncertain else None)


POOLS = {
    "halves": (F.max_pool2d, (8, 10), (2,)),
    "overlap": (F.max_pool2d, (9, 37), ((3, 3), 2, 1)),
    "gaps": (F.max_pool2d, (13, 17), ((2, 3), (1, 3), (1, 1), (2, 1))),
    "one dimension": (F.max_pool1d, (23,), (3, 2, 1)),
}


@NATIVE
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("name", POOLS)
def test_max_pools(monkeypatch, batch, name):
    from leanbayes.prediction.one_pass import linear

    calls, kernel = [], linear.max_pool_moments
    monkeypatch.setattr(
        linear, "max_pool_moments", lambda *a: calls.append(kernel(*a)) or calls[-1]
    )
    function, size, arguments = POOLS[name]
    x = Uncertain(*moments(*batch, 3, *size))
    with torch.no_grad():
        fast = function(x, *arguments)
        with without_native():
            formula = function(x, *arguments)
    assert [call is not None for call in calls] == [True, False]
    largest, places = getattr(F, function.__name__)(x.loc, *arguments, return_indices=True)
    for y in (fast, formula):
        assert torch.equal(y.loc, largest)
        taken = x.variance.flatten(-len(size)).gather(-1, places.flatten(-len(size)))
        assert torch.equal(y.variance, taken.view_as(largest))


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
