"""Properties of every posterior, prior, op and estimator, on shapes and settings drawn at random.

The suite tries 60 examples of each; ``make test-long`` tries 1,250.
"""

import math
import tempfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import (
    DTYPES,
    HALVES,
    POSITIVE,
    SEEDS,
    convolution_uses,
    dense_uses,
    moved,
    networks,
    normal_priors,
    normals,
    posteriors,
    priors,
    uses,
)
from torch import nn
from torch.distributions import kl_divergence

import leanbayes as lb
from leanbayes.estimators import ESTIMATORS
from leanbayes.kernels import kernels, without_native
from leanbayes.ops import Linear
from leanbayes.posteriors import Pruned

DRAWS = 1000
ALLOWED = 8.0
"""Standard errors: one chance in 10¹⁵ that a right moment is farther off."""


def assert_moments(samples, mean, variance):
    """Samples along the first axis have this mean and variance."""
    samples = samples.double()
    for found, expected in ((samples, mean), ((samples - mean).square(), variance)):
        error = found.std(0) / math.sqrt(len(found)) + 1e-5 * (1 + expected.abs())
        assert ((found.mean(0) - expected).abs() <= ALLOWED * error).all()


@given(posteriors(), uses(), st.sampled_from(sorted(ESTIMATORS)), DTYPES, SEEDS)
def test_outputs_are_finite_and_no_gradient_is_lost(spec, use, estimator, dtype, seed):
    torch.manual_seed(seed)
    learned = moved(spec(use.weight(dtype), use.op))
    q, x = learned(), use.input(dtype)
    usage = use.op.usage(x)
    try:
        y = ESTIMATORS[estimator](q, use.op, usage)(x)
    except ValueError as error:
        assert not q.independent
        assert "use estimator=lb.estimators.weights" in str(error)
        return
    assert y.dtype == dtype
    assert y.shape == use.op(x, torch.zeros(q.event_shape, dtype=dtype)).shape
    assert y.isfinite().all()
    (y.square().sum() + q.rsample().square().sum()).backward()
    for name, parameter in learned.named_parameters():
        if not parameter.numel():
            continue  # factors of rank 0
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@given(normals(), priors(), uses(), DTYPES, SEEDS)
def test_a_kl_is_finite_and_not_negative(spec, prior, use, dtype, seed):
    torch.manual_seed(seed)
    weight = use.weight(dtype)
    q, p = moved(spec(weight, use.op)), prior(use.op.matrix(weight))
    kl = kl_divergence(q(), p())
    assert kl.isfinite()
    exact = isinstance(prior, lb.priors.Normal | lb.priors.He | lb.priors.ARD)
    if exact:  # others are drawn, and a draw may be negative
        assert kl >= -1e-6 * q().mean.numel()
    kl.backward()
    for module in (q, p):
        gradients = (each.grad for each in module.parameters() if each.grad is not None)
        assert all(gradient.isfinite().all() for gradient in gradients)


@given(normals(), normal_priors(), POSITIVE, SEEDS)
def test_a_kl_is_that_of_draws(spec, prior, spread, seed):
    torch.manual_seed(seed)
    weight = spread * torch.randn(3, 4, dtype=torch.float64)
    q, p = moved(spec(weight, Linear()))(), prior(weight)()
    if getattr(spec, "diagonal", False):
        return  # has a bound in place of a KL
    with torch.no_grad():
        drawn = q.rsample((DRAWS,))
        mean, flat = q.mean.flatten(), drawn.flatten(1)
        covariance = torch.distributions.MultivariateNormal(mean, dense_covariance(q))
        ratio = covariance.log_prob(flat) - p.log_prob(drawn).flatten(1).sum(1)
        error = ratio.std() / math.sqrt(DRAWS) + 1e-8
        assert abs(ratio.mean() - kl_divergence(q, p)) <= ALLOWED * error


def dense_covariance(q):
    """Of the flat weights, from outputs for all inputs that pick one weight column."""
    rows, columns = q.event_shape
    if q.independent:
        return torch.diag(q.variance.flatten())
    op, found = Linear(), torch.zeros(rows, columns, rows, columns, dtype=torch.float64)
    unit = torch.eye(columns, dtype=torch.float64)

    def of(x):
        return q.moments(x[None], op).covariance(op)[0]

    for i in range(columns):
        for j in range(columns):
            both = of(unit[i] + unit[j]) - of(unit[i]) - of(unit[j])
            found[:, i, :, j] = both / 2
    return found.reshape(rows * columns, rows * columns)


@given(normals(), dense_uses() | convolution_uses(), DTYPES, SEEDS)
def test_moments_are_those_of_drawn_weights(spec, use, dtype, seed):
    torch.manual_seed(seed)
    q, x = moved(spec(use.weight(dtype), use.op))(), use.input(dtype)[:1]
    with torch.no_grad():
        try:
            law = q.moments(x, use.op)
        except ValueError as error:  # correlated between the groups of a convolution
            assert "use estimator=lb.estimators.weights" in str(error)
            return
        drawn = torch.stack([use.op(x, weight) for weight in q.rsample((DRAWS // 4,))])
        assert_moments(drawn, law.mean.double(), variance_of(law, use.op).double())


def variance_of(law, op):
    """Of every output; laws with correlated outputs have a covariance over channels."""
    return law.covariance(op).diagonal(dim1=-2, dim2=-1).movedim(-1, op.channel_dim)


@given(normals(), dense_uses() | convolution_uses(), st.booleans(), SEEDS)
def test_local_outputs_have_their_moments_natively_and_in_torch(spec, use, native, seed):
    torch.manual_seed(seed)
    q, x = moved(spec(use.weight(torch.float32), use.op))(), use.input(torch.float32)[:1]
    if not q.independent:
        return
    with torch.no_grad():
        law = q.moments(x, use.op)
        many = x.expand(DRAWS, *x.shape[1:])
        if native:
            drawn = q.local_map(use.op, DRAWS)(many)
        else:
            with without_native():
                drawn = q.local_map(use.op, DRAWS)(many)
        expected = law.mean.double(), variance_of(law, use.op).double()
        assert_moments(drawn, *(each.expand(1, *drawn.shape[1:])[0] for each in expected))


@pytest.mark.skipif(not kernels().native, reason=kernels().reason)
@given(normals(), normal_priors() | st.builds(lb.priors.ARD), dense_uses(), SEEDS)
def test_native_kls_and_gradients_equal_the_formula(spec, prior, use, seed):
    torch.manual_seed(seed)
    weight = use.weight(torch.float32)
    q, p = moved(spec(weight, use.op)), prior(weight)
    parameters = [*q.parameters(), *p.parameters()]

    def answers():
        kl = kl_divergence(q(), p())
        gradients = torch.autograd.grad(kl, parameters, materialize_grads=True)
        return [each.detach() for each in (kl, *gradients)]

    found = answers()
    with without_native():
        expected = answers()
    for mine, theirs in zip(found, expected, strict=True):
        slack = 1e-5 * (1 + float(theirs.abs().sum()))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=slack)


@given(networks(), posteriors(), DTYPES, SEEDS)
def test_a_saved_model_is_the_same_model(network, spec, dtype, seed):
    torch.manual_seed(seed)
    net, shape = network
    net = net.to(dtype)
    prior = lb.priors.Flat() if isinstance(spec, lb.Rank1 | Pruned) else lb.priors.Normal(0.5)
    model = moved(lb.convert(net, spec, prior))
    x = torch.randn(6, *shape, dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        again = lb.load(net, lb.save(model, f"{folder}/model"))
    options = {"samples": 3, "seed": seed, "likelihood": lb.likelihoods.Gaussian()}
    try:
        first, second = (lb.predict(each, x, **options).samples for each in (model, again))
    except ValueError as error:  # all units of a small layer may be off for every example
        assert isinstance(net[1], nn.ReLU)
        assert "samples are exactly equal" in str(error)
        return
    assert first.isfinite().all()
    assert torch.equal(first, second)
    assert model.state_dict().keys() == again.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[k]) for k, value in model.state_dict().items())


@given(networks(), posteriors(), st.integers(2, 6), DTYPES | HALVES, SEEDS)
def test_predicted_probabilities_and_uncertainties_are_consistent(
    network, spec, samples, dtype, seed
):
    torch.manual_seed(seed)
    net, shape = network
    model = lb.convert(net.to(dtype), spec, lb.priors.Flat())
    x = 10 * torch.randn(6, *shape, dtype=dtype)
    assert model(x).dtype == dtype
    p = lb.predict(model, x, samples=samples, seed=seed)
    assert p.probs.isfinite().all()
    total, slack = p.probs.double().sum(-1), 20 * torch.finfo(p.probs.dtype).eps
    torch.testing.assert_close(total, torch.ones(6).double(), rtol=0, atol=slack)
    assert (p.mutual_information >= -slack).all()
    assert (p.entropy >= p.expected_entropy - slack).all()
    assert (p.entropy <= math.log(p.probs.shape[-1]) + slack).all()


@settings(max_examples=3)
@given(networks(), normals(), SEEDS)
def test_a_traced_model_computes_what_it_does_eagerly(network, spec, seed):
    torch.manual_seed(seed)
    net, shape = network
    model, x = moved(lb.convert(net, spec, lb.priors.Normal(0.5))), torch.randn(6, *shape)
    torch._dynamo.reset()
    with lb.using(model, lb.estimators.mean):
        eager = model(x)
        traced = torch.compile(model, backend="aot_eager")(x)
    torch.testing.assert_close(traced, eager, rtol=1e-4, atol=1e-5)
    compiled_kl = torch.compile(lb.kl, backend="aot_eager")(model)
    torch.testing.assert_close(compiled_kl, lb.kl(model), rtol=1e-4, atol=1e-4)


LIKELIHOODS = st.one_of(
    st.builds(lb.likelihoods.Gaussian, POSITIVE),
    st.builds(lb.likelihoods.StudentTNoise, POSITIVE, df=st.floats(0.7, 30.0)),
    st.builds(lb.likelihoods.Poisson),
    st.builds(lb.likelihoods.NegativeBinomial, POSITIVE),
)


@given(LIKELIHOODS, st.floats(-4.0, 6.0), st.integers(1, 5), DTYPES, SEEDS)
def test_quantiles_are_ordered_and_have_their_probability(law, center, samples, dtype, seed):
    torch.manual_seed(seed)
    likelihood, levels = law.to(dtype), (0.05, 0.3, 0.5, 0.9)
    outputs = center + torch.randn(samples, 3, 1, dtype=dtype)
    with torch.no_grad():
        found = torch.stack([*likelihood.quantiles(outputs, levels)])
        assert found.isfinite().all()
        assert (found.diff(dim=0) >= 0).all()
        for level, value in zip(levels, found, strict=True):
            reached = likelihood.cdf(outputs, value)
            assert (reached >= level - 1e-3).all()
            if isinstance(likelihood, lb.likelihoods.Gaussian | lb.likelihoods.StudentTNoise):
                assert (reached <= level + 1e-3).all()
