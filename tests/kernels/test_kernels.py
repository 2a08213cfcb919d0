"""Fused functions against the plain formulas in float64, in both branches; and native noise."""

import math
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from divergences import k_tied_kl, no_force, relevance_kl, scaled_kl
from k_tied_outputs import k_tied_local
from torch import nn
from torch.distributions import Normal, kl_divergence

import leanbayes as lb
from leanbayes.distributions import KTiedNormal, LocationScale, RelevanceNormal
from leanbayes.distributions.base import safe_sqrt
from leanbayes.kernels import (
    NormalFactor,
    add_mixed_noise,
    add_noise,
    draw_k_tied,
    draw_scaled,
    native,
    scaled_local,
    without_native,
)
from leanbayes.kernels.dispatch import loaded, normals, threads

PROJECT = Path(__file__).parents[2]
BATCH, IN, OUT = 37, 45, 70  # no multiples of a vector's width
SIGMA = [1e-8, 1e-3, 1.0, 1e4]
RANKS = [1, 2, 3, 4, 5]
native_only = pytest.mark.skipif(not lb.kernels().native, reason=lb.kernels().reason)
FLOAT32 = {"rtol": 1e-4, "atol": 1e-5}


def with_noise(e):
    """The plain formulas, for a given noise: what the fused functions compute."""
    return {
        "add_noise": lambda mean, var: mean + safe_sqrt(var) * e,
        "scaled": lambda x, loc, scale, bias: (
            F.linear(x, loc, bias) + safe_sqrt((x * x) @ scale.square().t()) * e
        ),
        "zero_mean": lambda x, scale, bias: safe_sqrt((x * x) @ scale.square().t()) * e + bias,
        "k_tied": lambda x, loc, u, v, bias: (
            F.linear(x, loc, bias) + safe_sqrt((x * x) @ (u.t() @ v).square().t()) * e
        ),
        "k_tied_logs": lambda x, loc, u, v, bias: (
            F.linear(x, loc, bias) + safe_sqrt((x * x) @ (u.exp().t() @ v.exp()).square().t()) * e
        ),
        "draw": lambda loc, scale: loc + scale * e,
        "draw_k_tied": lambda loc, u, v: loc + (u.t() @ v) * e,
    }


FUSED = {
    "add_noise": add_noise,
    "scaled": scaled_local,
    "zero_mean": lambda x, scale, bias: scaled_local(x, None, scale, bias),
    "k_tied": k_tied_local,
    "k_tied_logs": partial(k_tied_local, log_unit=0.0),
    "draw": draw_scaled,
    "draw_k_tied": draw_k_tied,
}


def inputs(name, sigma=1.0, rank=2, dtype=torch.float32):
    """Leaves that the function of this name takes."""
    x, loc, bias = torch.randn(BATCH, IN), torch.randn(OUT, IN), torch.randn(OUT)
    root = math.sqrt(sigma / rank)
    u, v = root * (0.5 + torch.rand(rank, OUT)), root * (0.5 + torch.rand(rank, IN))
    scale = sigma * (0.5 + torch.rand(OUT, IN))
    tensors = {
        "add_noise": (torch.randn(BATCH, OUT), sigma * torch.rand(BATCH, OUT)),
        "scaled": (x, loc, scale, bias),
        "zero_mean": (x, scale, bias),
        "k_tied": (x, loc, u, v, bias),
        "k_tied_logs": (x, loc, u.log(), v.log(), bias),
        "draw": (loc, scale),
        "draw_k_tied": (loc, u, v),
    }[name]
    return [t.to(dtype).requires_grad_() for t in tensors]


def noise_of(function, tensors):
    """The noise that a call draws, from the seed that it takes or from torch's stream."""
    torch.manual_seed(7)
    y = function(*tensors)
    torch.manual_seed(7)
    if lb.kernels().native and y.dtype == torch.float32:
        return y, normals(y.shape, int(torch.empty((), dtype=torch.int64).random_()))
    return y, torch.randn_like(y)


def assert_same(name, tensors, tolerance, names=None):
    """The value and every gradient are those of the plain formula in float64."""
    y, e = noise_of(FUSED[name], tensors)
    exact = [t.detach().double().requires_grad_() for t in tensors]
    expected = with_noise(e.double())[name](*exact)
    torch.testing.assert_close(y.double(), expected, **tolerance)
    g = torch.randn_like(y)
    y.backward(g)
    expected.backward(g.double())
    for mine, theirs in zip(tensors, exact, strict=True):
        size = theirs.grad.abs().max().clamp_min(1e-30)
        torch.testing.assert_close(mine.grad.double() / size, theirs.grad / size, **tolerance)


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("sigma", SIGMA)
@pytest.mark.parametrize("name", FUSED)
def test_values_and_gradients_are_those_of_the_formulas(name, sigma):
    if "k_tied" in name:
        for rank in RANKS[:4] if name == "draw_k_tied" else RANKS:
            assert_same(name, inputs(name, sigma, rank), FLOAT32)
    else:
        assert_same(name, inputs(name, sigma), FLOAT32)


@pytest.mark.parametrize("name", FUSED)
def test_a_rank_or_a_dtype_without_a_kernel_takes_the_other_branch(name):
    tensors = inputs(name, rank=5, dtype=torch.float64)
    assert_same(name, tensors, {"rtol": 1e-9, "atol": 1e-9})
    if "k_tied" in name:
        with without_native():
            y = noise_of(FUSED[name], inputs(name, rank=5))[0]
        torch.manual_seed(7)
        assert y.shape == FUSED[name](*inputs(name, rank=5)).shape


def seeded(function):
    def same(*tensors):
        torch.manual_seed(3)
        return function(*tensors)

    return same


@pytest.mark.parametrize("name", FUSED)
def test_gradients_pass_gradcheck_once_and_twice(name):
    shapes = {
        "add_noise": ((3, 4), (3, 4)),
        "scaled": ((3, 2), (4, 2), (4, 2), (4,)),
        "zero_mean": ((3, 2), (4, 2), (4,)),
        "k_tied": ((3, 2), (4, 2), (2, 4), (2, 2), (4,)),
        "k_tied_logs": ((3, 2), (4, 2), (2, 4), (2, 2), (4,)),
        "draw": ((4, 2), (4, 2)),
        "draw_k_tied": ((4, 2), (2, 4), (2, 2)),
    }[name]
    tensors = [(0.2 + torch.rand(shape).double()).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(seeded(FUSED[name]), tensors)
    assert torch.autograd.gradgradcheck(seeded(FUSED[name]), tensors)


@native_only
@pytest.mark.parametrize(
    ("name", "rank"), [*((name, 2) for name in FUSED), ("k_tied", 5), ("k_tied_logs", 5)]
)
def test_native_functions_can_be_differentiated_twice(name, rank):
    tensors = inputs(name, rank=rank)
    y, e = noise_of(FUSED[name], tensors)
    exact = [t.detach().double().requires_grad_() for t in tensors]
    expected = with_noise(e.double())[name](*exact)
    seconds = []
    for value, leaves in ((y, tensors), (expected, exact)):
        first = torch.autograd.grad(value.square().sum(), leaves, create_graph=True)
        penalty = sum(slope.square().sum() for slope in first)
        seconds.append(torch.autograd.grad(penalty, leaves))
    for mine, theirs in zip(*seconds, strict=True):
        size = theirs.abs().max().clamp_min(1e-30)
        torch.testing.assert_close(mine.double() / size, theirs / size, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("missing", range(5))
def test_only_what_is_asked_for_gets_a_gradient(missing):
    tensors, all_of_them = inputs("k_tied"), inputs("k_tied")
    for mine, full in zip(tensors, all_of_them, strict=True):
        full.data.copy_(mine.data)
    tensors[missing].requires_grad_(False)
    for leaves in (tensors, all_of_them):
        seeded(k_tied_local)(*leaves).square().sum().backward()
    assert tensors[missing].grad is None
    for i in set(range(5)) - {missing}:
        torch.testing.assert_close(tensors[i].grad, all_of_them[i].grad)


# ---- divergences


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("prior", [(0.0, 0.2), (0.3, 2.0)])
@pytest.mark.parametrize("sigma", [*SIGMA, 1e-30])
@pytest.mark.parametrize("rank", RANKS)
def test_the_kl_of_tied_normals(rank, sigma, prior):
    loc, u, v = inputs("draw_k_tied", sigma, rank)
    exact = [t.detach().double().requires_grad_() for t in (loc, u, v)]
    value = k_tied_kl(loc, u, v, *prior)
    law = Normal(exact[0], exact[1].t() @ exact[2])
    assert_same_kl(value, kl_divergence(law, Normal(*prior)).sum(), (loc, u, v), exact)


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("sigma", [*SIGMA, 1e-30])
@pytest.mark.parametrize("rank", RANKS)
def test_the_kl_of_tied_normals_by_logarithms(rank, sigma):
    prior = (0.3, 2.0)
    loc, u, v = inputs("draw_k_tied", sigma, rank)
    u, v = (w.detach().log().requires_grad_() for w in (u, v))
    exact = [t.detach().double().requires_grad_() for t in (loc, u, v)]
    value = k_tied_kl(loc, u, v, *prior, log_unit=0.0)
    law = Normal(exact[0], exact[1].exp().t() @ exact[2].exp())
    assert_same_kl(value, kl_divergence(law, Normal(*prior)).sum(), (loc, u, v), exact)


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("prior", [(0.0, 0.2), (0.3, 2.0)])
@pytest.mark.parametrize("sigma", [*SIGMA, 1e-30])
@pytest.mark.parametrize("centered", [False, True])
def test_the_kl_of_free_normals(centered, sigma, prior):
    loc, scale = inputs("draw", sigma)
    exact = [t.detach().double().requires_grad_() for t in (loc, scale)]
    value = scaled_kl(None if centered else loc, scale, *prior)
    law = Normal(0.0 * exact[0] if centered else exact[0], exact[1])
    expected = kl_divergence(law, Normal(*prior)).sum()
    leaves = ((scale,), exact[1:]) if centered else ((loc, scale), exact)
    assert_same_kl(value, expected, *leaves)


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("scale", [0.2, 2.0])
@pytest.mark.parametrize("family", ["tied", "tied_logs", "free", "centered"])
def test_the_kl_from_a_prior_that_is_learned(family, scale):
    loc, u, v = inputs("draw_k_tied")
    _, free = inputs("draw")
    prior = torch.tensor(scale, requires_grad=True)
    logs = family == "tied_logs"
    if logs:
        u, v = (w.detach().log().requires_grad_() for w in (u, v))
    leaves = {"free": (loc, free), "centered": (free,)}.get(family, (loc, u, v))
    exact = [t.detach().double().requires_grad_() for t in (*leaves, prior)]
    if "tied" in family:
        value = k_tied_kl(*leaves, 0.3, prior, 0.0 if logs else None)
        factors = [w.exp() if logs else w for w in exact[1:3]]
        law = Normal(exact[0], factors[0].t() @ factors[1])
    else:
        value = scaled_kl(*((None,) if family == "centered" else ()), *leaves, 0.3, prior)
        law = Normal(0.0 if family == "centered" else exact[0], exact[-2])
    expected = kl_divergence(law, Normal(0.3, exact[-1])).sum()
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-3)
    slopes = torch.autograd.grad(value, (*leaves, prior), retain_graph=True)
    for mine, theirs in zip(slopes, torch.autograd.grad(expected, exact), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("sigma", [1e-8, 1e-3, 1.0, 1e4])
def test_the_kl_of_weights_with_a_relevance_each(sigma):
    loc, scale = inputs("draw", sigma)
    variance = scale.detach().square().requires_grad_()
    exact = [t.detach().double().requires_grad_() for t in (loc, variance)]
    law = Normal(exact[0], exact[1].sqrt())
    best = Normal(0.0, (exact[0].square() + exact[1]).sqrt())
    expected = kl_divergence(law, best).sum()
    torch.testing.assert_close(relevance_kl(loc, variance).double(), expected, rtol=1e-5, atol=1e-3)
    found = torch.autograd.grad(relevance_kl(loc, variance), (loc, variance))
    for mine, theirs in zip(found, torch.autograd.grad(expected, exact), strict=True):
        torch.testing.assert_close(mine.double() * sigma, theirs * sigma, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("shape", [(), (1,), (OUT, 1), (1, IN)])
def test_relevances_of_a_variance_that_weights_share(shape):
    """A family of one's own may give a variance that is broadcast."""

    class Shared(LocationScale):
        @property
        def variance(self):
            return shared

    loc, shared = torch.randn(OUT, IN, requires_grad=True), torch.rand(shape) + 0.1
    shared.requires_grad_()
    whole = shared.expand(OUT, IN).contiguous()
    found = kl_divergence(Shared(loc, torch.ones(OUT, IN)), RelevanceNormal())
    expected = relevance_kl(loc, whole)
    torch.testing.assert_close(found, expected, **FLOAT32)
    for mine, theirs in zip(
        torch.autograd.grad(found, (loc, shared)),
        torch.autograd.grad(expected, (loc, shared)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, **FLOAT32)


def assert_same_kl(value, expected, leaves, exact):
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-3)
    (0.01 * value).backward()
    (0.01 * expected).backward()
    for mine, theirs in zip(leaves, exact, strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("branch")
def test_a_scale_of_zero_has_an_infinite_kl_and_a_denormal_one_a_finite():
    scale = torch.ones(3, 40)
    scale[1, 7] = 1e-39
    expected = kl_divergence(Normal(0.0, scale.double()), Normal(0.0, 1.0)).sum()
    value = scaled_kl(None, scale, 0.0, 1.0)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-3)
    scale[1, 7] = 0.0
    assert scaled_kl(None, scale, 0.0, 1.0) == math.inf
    u = torch.ones(2, 3)
    u[:, 1] = 0.0
    assert k_tied_kl(torch.zeros(3, 40), u, torch.ones(2, 40), 0.0, 1.0) == math.inf


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("which", range(3))
def test_what_is_not_finite_shows(which, bad):
    tensors = inputs("draw_k_tied")
    with torch.no_grad():
        tensors[which][0, 0] = bad
    assert not k_tied_kl(*tensors, 0.0, 1.0).isfinite()
    loc, scale = inputs("draw")
    with torch.no_grad():
        (loc if which else scale)[0, 0] = bad
    assert not scaled_kl(loc, scale, 0.0, 1.0).isfinite()
    if which or math.isnan(bad):  # an infinite variance has no KL to fear
        assert not relevance_kl(loc, scale).isfinite()


@pytest.mark.parametrize(
    "name",
    [
        "scaled_kl",
        "k_tied_kl",
        "k_tied_kl_logs",
        "relevance_kl",
        "scaled_learned",
        "k_tied_learned",
    ],
)
def test_kls_pass_gradcheck_once_and_twice(name):
    shapes = ((3, 4), (2, 3), (2, 4)) if "k_tied" in name else ((3, 4), (3, 4))
    shapes += ((),) if "learned" in name else ()
    function = {
        "scaled_learned": lambda m, s, p: scaled_kl(m, s, 0.1, p),
        "k_tied_learned": lambda m, u, v, p: k_tied_kl(m, u, v, 0.1, p),
        "scaled_kl": lambda *t: scaled_kl(*t, 0.1, 0.5),
        "k_tied_kl": lambda *t: k_tied_kl(*t, 0.1, 0.5),
        "k_tied_kl_logs": lambda *t: k_tied_kl(*t, 0.1, 0.5, log_unit=0.0),
        "relevance_kl": relevance_kl,
    }[name]
    leaves = [(0.2 + torch.rand(shape).double()).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


@pytest.mark.usefixtures("branch")
def test_the_kl_of_a_model_is_that_of_torch():
    for posterior in (lb.KTied(2, 0.1), lb.KTied(1, 0.1), lb.MeanField(0.1)):
        model = lb.convert(nn.Linear(20, 30), posterior, lb.priors.Normal(0.2, loc=0.1))
        q = model.posterior()
        expected = kl_divergence(Normal(q.mean, q.variance.sqrt()), Normal(0.1, 0.2)).sum()
        torch.testing.assert_close(lb.kl(model), expected, rtol=1e-5, atol=1e-3)


def test_no_force_is_zero_and_adds_nothing_to_gradients():
    scale = torch.rand(3, 4, requires_grad=True)
    value = no_force(scale)
    value.backward()
    assert value == 0
    assert scale.grad is None
    (scale.sum() + no_force(scale)).backward()
    assert torch.equal(scale.grad, torch.ones(3, 4))


# ---- factors and convolutions


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("clip", [None, 1.1])
@pytest.mark.parametrize("members", [1, 2])
def test_normal_factors(members, clip):
    x, g = torch.randn(40, IN), torch.randn(40, IN)
    loc, scale = torch.ones(members, IN), 0.1 + 0.1 * torch.rand(members, IN)
    leaves = [t.clone().requires_grad_() for t in (x, loc, scale)]
    factor = NormalFactor.draw(leaves[1], leaves[2], clip, 40)
    y = factor.times(leaves[0])
    e = factor.noise if isinstance(factor.noise, torch.Tensor) else normals((40, IN), factor.noise)
    exact = [t.double().requires_grad_() for t in (x, loc, scale)]
    each = (
        exact[1].repeat_interleave(40 // members, 0),
        exact[2].repeat_interleave(40 // members, 0),
    )
    f = each[0] + each[1] * e.double()
    f = f if clip is None else f.clamp(-clip, clip)
    torch.testing.assert_close(y.double(), exact[0] * f, **FLOAT32)
    torch.testing.assert_close(factor.rows().double(), f, **FLOAT32)
    y.backward(g)
    (exact[0] * f).backward(g.double())
    for mine, theirs in zip(leaves, exact, strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4)


@native_only
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_mixed_noise_of_convolutions(rank):
    pairs = rank * (rank + 1) // 2
    sizes = ((3, 5, 6, 7), (3, pairs, 6, 7), (pairs, 5))
    leaves = [(0.1 + torch.rand(shape)).requires_grad_() for shape in sizes]
    torch.manual_seed(1)
    y = add_mixed_noise(*leaves)
    torch.manual_seed(1)
    e = normals((15, 42), int(torch.empty((), dtype=torch.int64).random_())).reshape(3, 5, 6, 7)
    exact = [t.detach().double().requires_grad_() for t in leaves]
    variance = torch.einsum("bkhw,kc->bchw", exact[1], exact[2])
    expected = exact[0] + variance.sqrt() * e.double()
    torch.testing.assert_close(y.double(), expected, **FLOAT32)
    g = torch.randn_like(y)
    y.backward(g, retain_graph=True)
    expected.backward(g.double())
    for mine, theirs in zip(leaves, exact, strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4)
    first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
    torch.autograd.grad(sum(slope.sum() for slope in first), leaves)


# ---- laws and unbiased gradients, against the dense oracle


LAYERS = {
    "k_tied": (lb.KTied(2, lb.posteriors.Scale(0.3, raw_spread=0.3)), nn.Linear(5, 3), (5,)),
    "mean_field": (lb.MeanField(lb.posteriors.Scale(0.3, raw_spread=0.3)), nn.Linear(5, 3), (5,)),
    "zero_mean": (lb.posteriors.ZeroMean(), nn.Linear(5, 3), (5,)),
    "convolution": (
        lb.KTied(2, lb.posteriors.Scale(0.3, raw_spread=0.3)),
        nn.Conv2d(1, 2, 2),
        (1, 3, 3),
    ),
}
DRAWS = 40_000
BOUND = 5.5  # standard errors; about one failure in ten million


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("estimator", [lb.estimators.local, lb.estimators.weights])
@pytest.mark.parametrize("name", LAYERS)
def test_means_variances_and_gradients_have_no_bias(name, estimator):
    """``E f`` and ``∇ E f`` for ``f = Σ y²``, whose expectation is ``Σ mean² + variance``."""
    posterior, net, shape = LAYERS[name]
    model = lb.convert(net, posterior, lb.priors.Normal(1.0, loc=1.0), estimator)
    x = torch.randn(1, *shape)
    with torch.no_grad():
        y = model(x.expand(DRAWS, *shape)) if estimator is lb.estimators.local else drawn(model, x)
    law = moments(model, x)
    for samples, expected in ((y, law[0]), ((y - law[0]).square(), law[1])):
        error = (samples.mean(0) - expected[0]) / (samples.std(0) / math.sqrt(len(samples)))
        assert error.abs().max() < BOUND
    slopes = torch.stack([gradient(model, x) for _ in range(600)])
    mean, variance = moments(model, x)
    (mean.square() + variance).sum().backward()
    exact = torch.cat([p.grad.flatten() for p in model.parameters()])
    spread = slopes.std(0).clamp_min(1e-4) / math.sqrt(len(slopes))
    assert ((slopes.mean(0) - exact) / spread).abs().max() < BOUND


def drawn(model, x):
    return torch.cat([model(x) for _ in range(1500)])


def gradient(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return flat


def moments(model, x):
    """Mean and variance of every output, from the dense moments of the weights."""
    q, op = model.posterior(), model.op
    mean = op(x, q.mean)
    return op.add_bias(mean, model.bias), op(op.square(x), q.variance) + 0 * mean


# ---- awkward input


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("name", FUSED)
def test_dead_units_have_no_noise_and_finite_gradients(name):
    if name.startswith("draw"):
        pytest.skip("a weight has no input")
    tensors = inputs(name)
    with torch.no_grad():
        tensors[1 if name == "add_noise" else 0].zero_()
    y = FUSED[name](*tensors)
    y.sum().backward()
    with torch.no_grad():
        bias = tensors[0] if name == "add_noise" else tensors[-1].expand_as(y)
    torch.testing.assert_close(y, bias)
    assert all(t.grad.isfinite().all() for t in tensors)


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("name", ["scaled", "zero_mean", "k_tied"])
def test_batches_of_none_and_one(name, batch):
    tensors = inputs(name)
    tensors[0] = tensors[0].detach()[:batch].requires_grad_()
    y = FUSED[name](*tensors)
    y.square().sum().backward()
    assert y.shape == (batch, OUT)
    assert all(t.grad.isfinite().all() for t in tensors)
    assert batch or all(not t.grad.any() for t in tensors)


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("name", ["scaled", "zero_mean", "k_tied"])
def test_the_order_of_memory_does_not_matter(name):
    tensors = [t.detach() for t in inputs(name)]
    turned = [t.t().contiguous().t() if t.ndim == 2 else t for t in tensors]
    assert not turned[0].is_contiguous()
    torch.testing.assert_close(seeded(FUSED[name])(*turned), seeded(FUSED[name])(*tensors))


@pytest.mark.usefixtures("branch")
def test_seeds_make_noise_repeatable():
    model, x = lb.convert(nn.Linear(8, 4), lb.KTied(2), lb.priors.Normal(1.0)), torch.randn(6, 8)
    for estimator in (lb.estimators.local, lb.estimators.weights):
        with lb.using(model, estimator):
            first, second = seeded(model)(x), seeded(model)(x)
            assert torch.equal(first, second)
            assert not torch.equal(model(x), second)
    first, second = (lb.predict(model, x, samples=3, seed=5).samples for _ in range(2))
    assert torch.equal(first, second)


def test_a_subclass_that_overrides_the_moments_is_obeyed():
    class Quiet(KTiedNormal):
        def moments(self, x, op):
            law = super().moments(x, op)
            return law._replace(variance=0.0 * law.variance)

    class Loud(LocationScale):
        def moments(self, x, op):
            law = super().moments(x, op)
            return law._replace(variance=law.variance + 100.0)

    x, op = torch.randn(50, 3), lb.ops.Linear()
    quiet = Quiet(torch.ones(2, 3), torch.ones(2, 2), torch.ones(2, 3))
    torch.testing.assert_close(quiet.local(x, op), op(x, quiet.loc))
    loud = Loud(torch.zeros(2, 3), torch.ones(2, 3))
    assert loud.local(x, op).std() > 5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, by torch itself
def test_torch_func_and_forward_derivatives_take_the_plain_formulas():
    model, x = lb.convert(nn.Linear(4, 3), lb.KTied(2), lb.priors.Normal(1.0)), torch.randn(5, 4)
    y = torch.func.vmap(model, randomness="different")(x.unsqueeze(1))
    assert y.shape == (5, 1, 3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        tangent = torch.autograd.forward_ad.unpack_dual(model(dual)).tangent
    assert tangent is not None


@pytest.mark.usefixtures("branch")
def test_a_tensor_that_has_left_torch_func_is_as_good_as_any():
    model, kept = lb.convert(nn.Linear(6, 5), lb.KTied(2), lb.priors.Normal(0.3)), []

    def keep(x):
        kept.append(x)
        return x.sum()

    torch.func.grad(keep)(torch.randn(2, 6))
    model(kept[0]).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


# ---- the native library


@native_only
@pytest.mark.parametrize("name", [*FUSED, "k_tied_kl", "scaled_kl"])
def test_threads_change_no_bit(name):
    size = 300
    x, loc, bias = torch.randn(size, size), torch.randn(size, size), torch.randn(size)
    u, v, scale = torch.rand(2, size), torch.rand(2, size), torch.rand(size, size)
    given = {
        "add_noise": (loc, scale),
        "scaled": (x, loc, scale, bias),
        "zero_mean": (x, scale, bias),
        "k_tied": (x, loc, u, v, bias),
        "k_tied_logs": (x, loc, u, v, bias),
        "draw": (loc, scale),
        "draw_k_tied": (loc, u, v),
        "k_tied_kl": (loc, u, v),
        "scaled_kl": (loc, scale),
    }[name]
    function = {
        **FUSED,
        "k_tied_kl": lambda *t: k_tied_kl(*t, 0.0, 0.5),
        "scaled_kl": lambda *t: scaled_kl(*t, 0.0, 0.5),
    }[name]
    found, before = [], torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert threads(size * size) == count
            leaves = [t.clone().requires_grad_() for t in given]
            y = seeded(function)(*leaves)
            y.sum().backward()
            found.append([y.detach(), *(t.grad for t in leaves)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@native_only
def test_loading_the_library_leaves_denormal_numbers_alone():
    script = (
        "import torch, leanbayes as lb\n"
        "assert lb.kernels().native\n"
        "lb.convert(torch.nn.Linear(8, 4), lb.KTied(2), lb.priors.Normal(1.0))(torch.randn(3, 8))\n"
        "assert float(torch.tensor(1e-39) * 1.0) > 0 and 5e-324 * 1.0 > 0\n"
        "assert float(torch.tensor([1e-38] * 64).mul(0.1).min()) > 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def told(**environment):
    script = "import leanbayes as lb; print(lb.kernels().native, lb.kernels())"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()


def test_the_environment_switches_native_kernels_off():
    assert told(LEANBAYES_NATIVE="0") == "False torch's own operations: LEANBAYES_NATIVE is 0"


@pytest.mark.skipif(
    os.environ.get("LEANBAYES_NATIVE") == "0" or shutil.which("c++") is None,
    reason="switched off, or no compiler",
)
def test_where_a_compiler_is_both_branches_are_tested():
    assert lb.kernels().native, f"{lb.kernels()}; run make, or pip install -e . again"


@native_only
def test_kernels_says_what_is_used():
    assert str(lb.kernels()).startswith("native kernels with ")
    with without_native():
        assert not lb.kernels().native
    assert lb.kernels().native


@native_only
@pytest.mark.parametrize("change", ["missing", "broken", "older", 5, 70, -1, "half"])
def test_a_library_that_does_not_fit_is_not_used(change, monkeypatch, tmp_path):
    """A truncated one would end the process with a signal, so it is not loaded at all."""
    library = tmp_path / "libkernels.so"
    if change == "broken":
        library.write_bytes(b"no library")
    elif change == "half" or isinstance(change, int):
        whole = native.LIBRARY.read_bytes()
        library.write_bytes(whole[: len(whole) // 2 if change == "half" else change])
    elif change == "older":
        shutil.copy(native.LIBRARY, library)
        monkeypatch.setattr(native, "_INTERFACE", 0)
    monkeypatch.setattr(native, "LIBRARY", library)
    state = native._State()
    assert state.library is None
    assert "install leanbayes" in state.reason


@native_only
def test_noise_that_was_drawn_natively_is_differentiated_so():
    tensors = inputs("k_tied")
    y = k_tied_local(*tensors)
    with without_native():
        y.sum().backward()
    assert all(t.grad.isfinite().all() for t in tensors)


def built(folder, **environment):
    """The files of kernels in a wheel that is built from a copy of the project."""
    shutil.copytree(
        PROJECT / "src", folder / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, folder)
    command = [sys.executable, "-m", "pip", "wheel", str(folder), "--no-build-isolation"]
    options = ["--no-deps", "--no-index", "--quiet", "--wheel-dir", str(folder / "out")]
    subprocess.run([*command, *options], env={**os.environ, **environment}, check=True)
    (wheel,) = (folder / "out").glob("*.whl")
    shutil.unpack_archive(wheel, folder / "unpacked", "zip")
    return {path.name for path in (folder / "unpacked" / "leanbayes" / "kernels").iterdir()}


def test_without_a_compiler_the_package_installs_without_native_kernels(tmp_path):
    files = built(tmp_path, CC="/bin/false", CXX="/bin/false")
    assert "libkernels.so" not in files
    assert "native.py" in files


# ---- the generator


@native_only
def test_the_generator_of_native_noise():
    """Moments, distribution and correlations of 10⁷ normals; ``LEANBAYES_NORMALS=1e8`` for more."""
    rows = 1000
    n = int(float(os.environ.get("LEANBAYES_NORMALS", "1e7"))) // rows
    z = normals((rows, n), 11)
    count = z.numel()
    for power, moment, spread in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        found = z.double().pow(power).mean()
        assert abs(found - moment) < BOUND * math.sqrt(spread / count)
    assert z.abs().max() < 6.6
    assert kolmogorov_smirnov(z) < 2.5  # in units of 1/√n: one failure in 10⁵
    for lag in (1, 16, 32):
        assert abs((z[:, :-lag] * z[:, lag:]).double().mean()) < BOUND / math.sqrt(count * 0.9)
        squares = (z[:, :-lag].square() - 1) * (z[:, lag:].square() - 1)
        assert abs(squares.double().mean()) < 2 * BOUND / math.sqrt(count * 0.9)
    for other in (
        z.roll(1, 0),
        z.roll(7, 0),
        normals((rows, n), 12),
        normals((rows, n), 11 + 2**40),
    ):
        assert abs((z * other).double().mean()) < BOUND / math.sqrt(count)
        assert abs((z.abs() * other.abs() - 2 / math.pi).double().mean()) < BOUND / math.sqrt(count)


def kolmogorov_smirnov(z):
    """The largest distance of the distribution from the normal one, times √n."""
    u = torch.special.ndtr(z.flatten()[: 10**6].double()).sort().values
    ranks = torch.arange(1, len(u) + 1, dtype=torch.float64) / len(u)
    return float((ranks - u).abs().max()) * math.sqrt(len(u))


@native_only
def test_no_two_rows_or_seeds_share_a_stream():
    first = torch.stack([normals((200, 4), seed) for seed in (0, 1, 2**32, 2**63 - 1)])
    flat = first.reshape(-1, 4)
    assert len(flat.unique(dim=0)) == len(flat)


@native_only
def test_the_bits_behind_the_noise_are_balanced():
    words = torch.empty(1000, 1000, dtype=torch.int32)
    loaded().bits(words.data_ptr(), 1000, 1000, 3, 1)
    for bit in range(32):
        share = ((words >> bit) & 1).double().mean()
        assert abs(share - 0.5) < BOUND * 0.5 / 1000
