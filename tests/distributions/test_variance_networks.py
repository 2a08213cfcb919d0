"""Variance networks [variance]."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from digits import images, train
from scipy import integrate, optimize, special, stats
from torch import nn
from torch.distributions import Normal, kl_divergence

import leanbayes as lb
from leanbayes.distributions import FixedMap, LocationScale, LogUniformDensity, RelevanceNormal
from leanbayes.distributions.kl import cross_entropy
from leanbayes.ops import Conv, Linear
from leanbayes.testing import FAILURE_RATE, assert_mean

LOG_ALPHAS = np.linspace(-8.0, 8.0, 33)
UNNORMALIZED = -0.5 * math.log(2 * math.pi * math.e) - 0.5 * (np.euler_gamma + math.log(2))
OPS = {
    "dense": (Linear(), (4, 6), (2, 6)),
    "conv": (Conv((2, 3), stride=(2, 1), padding=(1, 0)), (4, 1, 2, 3), (2, 1, 4, 4)),
}


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def normal(mean, std, shape=(1, 1)):
    """Independent weights, all alike."""
    return LocationScale(*(torch.full(shape, value, dtype=torch.float64) for value in (mean, std)))


def of_alpha(log_alpha, mean=1.0, shape=(1, 1)):
    return normal(mean, math.exp(0.5 * log_alpha) * abs(mean), shape)


def expectation(function, q):
    """E f(w) of one normal weight by the trapezoidal rule in log |w|, where log |w| is smooth."""
    mean, std = q.mean.item(), q.scale.item()
    top = math.log(abs(mean) + 40 * std)
    logs = np.linspace(top - 60, top, 60_001)
    size, density = np.exp(logs), stats.norm(mean, std).pdf
    terms = sum(function(w) * density(w) for w in (size, -size)) * size
    return integrate.trapezoid(terms, logs)


def exact_kl(log_alpha):
    """½ Σ_k Pois(k; u) [ψ(k + ½) − ψ(½)], u = 1 / (2α), summed where the Poisson has its mass."""
    u = 0.5 * math.exp(-log_alpha)
    first, last = stats.poisson.ppf([1e-18, 1 - 1e-16], u)
    k = np.arange(max(first - 50, 0), last + 50)
    return 0.5 * stats.poisson.pmf(k, u) @ (special.digamma(k + 0.5) - special.digamma(0.5))


def ard_kl(log_alpha):
    return 0.5 * torch.log1p((-log_alpha).exp())


def approximate_kl(log_alpha):
    return ard_kl(log_alpha) + 0.63576 * (1 - torch.sigmoid(1.87320 + 1.48695 * log_alpha))


def assert_same_gradients(value, expected, parameters):
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)
    ours, theirs = (
        torch.autograd.grad(v, parameters, retain_graph=True) for v in (value, expected)
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


# dense and convolutional variance layers, and the moments of their outputs


def covariance_of_outputs(op, x, scale):
    """Over examples, channels and positions, Σ_j p_j σ_ij² p′_j for all pairs of patches p, p′."""
    if isinstance(op, Linear):
        patches = x.unsqueeze(-1)
    else:
        patches = F.unfold(x, op.kernel_size, padding=op.padding, stride=op.stride)
    same_channel = torch.eye(len(scale), dtype=scale.dtype)
    terms = (patches, scale**2, patches, same_channel)
    return torch.einsum("bjl,ij,cjm,ik->bilckm", *terms).flatten(3).flatten(0, 2)


@pytest.mark.checklist("VN1")
@pytest.mark.parametrize(
    "estimator", [lb.estimators.weights, lb.estimators.local], ids=["weights", "local"]
)
@pytest.mark.parametrize("layer", OPS)
def test_outputs_have_zero_mean_and_the_analytic_covariance(layer, estimator):
    """Local noise keeps every variance and drops what examples and positions share."""
    op, weight_shape, input_shape = OPS[layer]
    posterior, x = lb.posteriors.ZeroMean()(randn(weight_shape), op), randn(input_shape)
    q, usage = posterior(), op.usage(x)
    with torch.no_grad():
        y = torch.stack([estimator(q, op, usage)(x) for _ in range(4000)]).flatten(1)
        expected = covariance_of_outputs(op, x, posterior.scale)
    if estimator is lb.estimators.local:
        expected = torch.diag(expected.diagonal())
    assert_mean(y, 0.0, "mean of the outputs")
    assert_mean(y.unsqueeze(-1) * y.unsqueeze(-2), expected, "covariance of the outputs")


@pytest.mark.checklist("VN1")
@pytest.mark.parametrize("layer", OPS)
def test_moments_and_their_gradients_are_the_analytic_ones(layer):
    op, weight_shape, input_shape = OPS[layer]
    posterior, x = lb.posteriors.ZeroMean()(randn(weight_shape), op), randn(input_shape)
    moments = posterior().moments(x, op)
    expected = covariance_of_outputs(op, x, posterior.scale).diagonal()
    assert not moments.mean.any()
    torch.testing.assert_close(moments.variance.flatten(), expected)
    upstream = randn(*expected.shape)
    ours, oracle = ((v * upstream).sum() for v in (moments.variance.flatten(), expected))
    assert_same_gradients(ours, oracle, [posterior.scale])


# the weight scaling rule fails; Bernoulli and uniform noise


def digits():
    x, y = images()
    order = torch.randperm(len(x))
    x, y = (x[order] + 1) / 2, y[order]
    return x[:1300], y[:1300], x[1300:], y[1300:]


def accuracy(model, x, y, estimator):
    with lb.using(model, estimator):
        return (lb.predict(model, x, samples=20).labels == y).double().mean()


@pytest.mark.checklist("VN2")
@pytest.mark.parametrize(
    "posterior",
    [lb.posteriors.ZeroMean(), lb.posteriors.VariationalDropout()],
    ids=["variance", "dropout"],
)
def test_mean_propagation_is_chance_for_a_variance_network_alone(posterior):
    x, y, test_x, test_y = digits()
    hidden, head = nn.Linear(100, 100, bias=False), nn.Linear(100, 10)
    net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), hidden, nn.ReLU(), head)
    model = lb.convert(net, posterior, lb.priors.LogUniform(), include=("2",))
    train(model, x, y, steps=250, lr=5e-3)
    assert accuracy(model, test_x, test_y, lb.estimators.auto) > 0.8
    mean_propagation = accuracy(model, test_x, test_y, lb.estimators.mean)
    if isinstance(posterior, lb.posteriors.VariationalDropout):
        assert mean_propagation > 0.8
    else:
        only_guess = model[-1].bias.argmax()
        assert mean_propagation == (test_y == only_guess).double().mean() < 0.2


@pytest.mark.checklist("VN4")
@pytest.mark.parametrize("noise", ["normal", "bernoulli", "uniform"])
def test_lenet_trained_by_moment_matching_works_when_sampled(noise):
    x, y, test_x, test_y = digits()
    lenet = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64, 100, bias=False), nn.ReLU(), nn.Linear(100, 10)),
    )
    model = lb.convert(
        lenet, lb.posteriors.ZeroMean(noise), lb.priors.Flat(), lb.estimators.local, include=("8",)
    )
    train(model, x, y, steps=250, lr=5e-3)
    assert accuracy(model, test_x, test_y, lb.estimators.local) > 0.8
    assert accuracy(model, test_x, test_y, lb.estimators.weights) > 0.8


@pytest.mark.checklist("VN4")
@pytest.mark.parametrize(("noise", "share"), [("bernoulli", 1.0), ("uniform", 1 / 3)])
def test_samples_have_the_published_law_and_moment_matching_its_variance(noise, share):
    theta, op, x = 0.7, Linear(), randn(1, 2)
    q = lb.posteriors.ZeroMean(noise, theta * math.sqrt(share))(randn(1, 2), op)()
    w = q.rsample((20_000,)).detach()
    assert_mean(w, 0.0, "mean weight")
    if noise == "uniform":
        law = stats.uniform(-theta, 2 * theta)
        assert stats.kstest(w.flatten(), law.cdf).pvalue > FAILURE_RATE
    else:
        torch.testing.assert_close(w.abs(), torch.full_like(w, theta))
    output = stats.norm(0, theta * math.sqrt(share * x.square().sum()))
    matched = lb.estimators.local(q, op, op.usage(x))(x.expand(20_000, 2)).detach().flatten()
    sampled = (x @ w.mT).flatten()
    assert_mean(sampled.square(), output.var(), "variance of a sampled output")
    assert stats.kstest(matched, output.cdf).pvalue > FAILURE_RATE
    assert stats.kstest(sampled, output.cdf).pvalue < FAILURE_RATE


# KL from the log-uniform prior, exact and approximate


@pytest.mark.checklist("VN5")
@pytest.mark.parametrize(
    ("log_alpha", "exact", "approximate"),
    [
        (-4.0, 2.6258, 2.6342),
        (-2.0, 1.5442, 1.5405),
        (0.0, 0.42669, 0.43124),
        (2.0, 0.06617, 0.06842),
        (4.0, 0.00913, 0.00933),
        (8.0, 1.677e-4, 1.684e-4),
    ],
)
def test_log_uniform_kl_has_the_known_values(log_alpha, exact, approximate):
    q = of_alpha(log_alpha, mean=-0.3)
    for prior, value in (
        (LogUniformDensity(exact=True), exact),
        (LogUniformDensity(), approximate),
    ):
        assert kl_divergence(q, prior).item() == pytest.approx(value, rel=6e-4)


@pytest.mark.checklist("VN5")
@pytest.mark.parametrize("log_alpha", [-12.0, -6.0, -4.86, -4.84, -4.0, -1.0, 0.0, 3.0, 8.0])
def test_exact_kl_is_the_series_and_the_integral_and_its_slope_is_dawsons(log_alpha):
    stored = torch.full((1, 1), log_alpha, dtype=torch.float64, requires_grad=True)
    q = LocationScale.multiplicative(torch.full_like(stored, 0.3), stored)
    value = kl_divergence(q, LogUniformDensity(exact=True))
    integral = expectation(lambda w: np.log(np.abs(w)), q) - q.entropy().item() - UNNORMALIZED
    assert value.item() == pytest.approx(integral, abs=1e-10)
    assert value.item() == pytest.approx(exact_kl(log_alpha), rel=1e-10, abs=1e-10)
    root = math.sqrt(0.5 * math.exp(-log_alpha))
    (slope,) = torch.autograd.grad(value, stored)
    assert slope.item() == pytest.approx(-root * special.dawsn(root), rel=1e-9)


@pytest.mark.checklist("VN5")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-4)])
def test_approximation_is_the_published_formula_and_near_the_truth(dtype, tolerance):
    for stored in torch.tensor(LOG_ALPHAS, dtype=dtype):
        q = LocationScale.multiplicative(torch.ones(1, 1, dtype=dtype), stored.reshape(1, 1))
        approximate = kl_divergence(q, LogUniformDensity()).item()
        exact = kl_divergence(q, LogUniformDensity(exact=True)).item()
        assert approximate == pytest.approx(approximate_kl(stored.double()).item(), rel=tolerance)
        assert exact == pytest.approx(exact_kl(stored.item()), rel=tolerance)
        assert abs(approximate - exact) < min(0.0095, 0.035 * exact)


# the Student t prior, by one sample


def student(df):
    return lb.priors.StudentT(df)(torch.zeros(1, 1, dtype=torch.float64))()


@pytest.mark.checklist("VN6")
@pytest.mark.parametrize("log_alpha", [-4.0, 0.0, 4.0])
def test_student_t_tends_to_the_log_uniform_plus_a_constant(log_alpha):
    df, q = 1e-16, of_alpha(log_alpha, shape=(200, 200))
    one_sample = (cross_entropy(student(df), q) - q.entropies()).flatten()
    expected = exact_kl(log_alpha) + UNNORMALIZED + math.log(2 / df)
    assert_mean(one_sample, expected, "one-sample KL")
    assert kl_divergence(q, student(df)) != kl_divergence(q, student(df))


@pytest.mark.checklist("VN6")
@pytest.mark.parametrize("df", [0.5, 3.0])
def test_one_sample_kl_and_its_gradient_are_unbiased(df):
    def true_kl(std):
        return -expectation(stats.t(df).logpdf, normal(0.4, std)) - stats.norm(0, std).entropy()

    loc, scale = normal(0.4, 0.7, (200, 200)).loc, torch.full((200, 200), 0.7).double()
    q = LocationScale(loc, scale.requires_grad_())
    one_sample = cross_entropy(student(df), q) - q.entropies()
    assert_mean(one_sample.detach().flatten(), true_kl(0.7), "one-sample KL")
    (gradient,) = torch.autograd.grad(one_sample.sum(), scale)
    slope = (true_kl(0.7 + 1e-4) - true_kl(0.7 - 1e-4)) / 2e-4
    assert_mean(gradient.flatten(), slope, "gradient of the one-sample KL")


@pytest.mark.checklist("VN6")
@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 1e4])
def test_student_t_is_finite_in_float32_with_the_published_df(scale):
    model = lb.convert(nn.Linear(30, 20), lb.MeanField(scale), lb.priors.StudentT(df=1e-16))
    value = lb.kl(model)
    assert value.dtype == torch.float32
    assert value.isfinite()
    gradients = torch.autograd.grad(value, list(model.posterior.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


# automatic relevance determination


@pytest.mark.checklist("VN7")
@pytest.mark.parametrize("log_alpha", [-3.0, 0.0, 2.0])
def test_ard_is_the_best_of_all_zero_mean_normal_priors(log_alpha):
    q, alpha = of_alpha(log_alpha, mean=0.6), math.exp(log_alpha)

    def kl_from(log_scale):
        return kl_divergence(Normal(q.loc, q.scale), Normal(0.0, math.exp(log_scale))).item()

    ours = kl_divergence(q, RelevanceNormal()).item()
    grid = [kl_from(log_scale) for log_scale in np.linspace(-5, 5, 1001)]
    assert ours <= min(grid) == pytest.approx(ours, abs=1e-4)
    best = optimize.minimize_scalar(kl_from, bounds=(-5, 5), method="bounded")
    assert ours == pytest.approx(best.fun, rel=1e-8)
    assert ours == pytest.approx(0.5 * math.log(1 + 1 / alpha), rel=1e-12)
    assert math.exp(2 * best.x) == pytest.approx((1 + alpha) * 0.6**2, rel=1e-3)


@pytest.mark.checklist("VN7")
def test_gradient_is_that_of_the_kl_from_the_optimal_prior():
    loc, scale = randn(3, 4).requires_grad_(), randn(3, 4).exp().requires_grad_()
    optimal = (loc**2 + scale**2).sqrt().detach()
    expected = kl_divergence(Normal(loc, scale), Normal(0.0, optimal)).sum()
    assert_same_gradients(
        kl_divergence(LocationScale(loc, scale), RelevanceNormal()), expected, [loc, scale]
    )


# a larger α costs less under all three priors


def student_t_kl(q):
    def log_prob(w):
        return student(1e-16).log_prob(torch.from_numpy(w)).squeeze(0).numpy()

    return -expectation(log_prob, q) - q.entropy().item()


KLS = {
    "log_uniform": lambda q: kl_divergence(q, LogUniformDensity()).item(),
    "log_uniform_exact": lambda q: kl_divergence(q, LogUniformDensity(exact=True)).item(),
    "ard": lambda q: kl_divergence(q, RelevanceNormal()).item(),
    "student_t": student_t_kl,
}


@pytest.mark.checklist("VN8")
@pytest.mark.parametrize("prior", KLS)
def test_kl_decreases_in_alpha_and_depends_on_nothing_else(prior):
    means = (-2.0, 0.1)
    kls = np.array([[KLS[prior](of_alpha(a, mean)) for a in LOG_ALPHAS] for mean in means])
    assert (np.diff(kls) < 0).all()
    np.testing.assert_allclose(kls[0], kls[1], rtol=1e-6)


# a zero-mean weight costs a constant under the log-uniform prior


@pytest.mark.checklist("VN9")
@pytest.mark.parametrize("std", [1e-4, 0.1, 1.0, 30.0])
def test_zero_mean_weight_costs_the_same_for_any_variance(std):
    q = normal(0.0, std)
    unnormalized = expectation(lambda w: np.log(np.abs(w)), q) - q.entropy().item()
    assert unnormalized == pytest.approx(-2.05412, abs=1e-5)
    w = normal(0.0, std, (200, 200)).rsample().flatten()
    log_ratio = torch.from_numpy(stats.norm(0, std).logpdf(w)) - LogUniformDensity().log_prob(w)
    assert_mean(log_ratio, 0.0, "KL with the library's constant")


@pytest.mark.checklist("VN9")
@pytest.mark.parametrize(
    "prior", [lb.priors.LogUniform(), lb.priors.LogUniform(exact=True), lb.priors.ARD()], ids=repr
)
def test_variance_layer_is_free_and_feels_no_force(prior):
    model = lb.convert(nn.Linear(30, 20).double(), lb.posteriors.ZeroMean(), prior)
    value = lb.kl(model)
    (force,) = torch.autograd.grad(value, model.posterior.scale, materialize_grads=True)
    assert value.item() == pytest.approx(0.0, abs=1e-12)
    assert force.abs().max() < 1e-12


# how far Gaussian dropout is from its variance layer


def dropout_and_its_variance_layer(log_alpha, shape):
    p = LocationScale.multiplicative(randn(*shape), torch.full((1, 1), log_alpha).double())
    return p, LocationScale(None, p.scale)


def distance_and_bound(count, log_alpha):
    """sup |E_p f − E_q f| over |f| ≤ 1, which is ∫ |p − q|, and the theorem's bound on it."""
    alpha = math.exp(log_alpha)
    distance = 4 * stats.norm.cdf(math.sqrt(count / alpha) / 2) - 2
    return distance, math.sqrt(2 * count / (math.pi * alpha))


@pytest.mark.checklist("VN10")
@pytest.mark.parametrize("log_alpha", [-2.0, 0.0, 3.0, 7.0])
def test_integral_over_one_weight_is_the_exact_distance_and_keeps_the_bound(log_alpha):
    p, q = dropout_and_its_variance_layer(log_alpha, (1, 1))
    width = abs(p.loc.item()) + 12 * p.scale.item()
    w = torch.linspace(-width, width, 400_001, dtype=torch.float64).reshape(-1, 1, 1)
    difference = (p.log_prob(w).exp() - q.log_prob(w).exp()).abs()
    integral = torch.trapezoid(difference, w.flatten()).item()
    distance, bound = distance_and_bound(1, log_alpha)
    assert integral == pytest.approx(distance, abs=1e-7)
    assert integral <= bound


@pytest.mark.checklist("VN10")
@pytest.mark.parametrize("log_alpha", [1.0, 3.0, 5.0])
@pytest.mark.parametrize("shape", [(2, 3), (4, 10)])
def test_likelihood_ratio_attains_the_distance_of_many_weights(shape, log_alpha):
    p, q = dropout_and_its_variance_layer(log_alpha, shape)
    distance, bound = distance_and_bound(math.prod(shape), log_alpha)
    gain = 0.0
    for sign, law in ((1, p), (-1, q)):
        w = law.rsample((20_000,))
        gain = gain + sign * torch.sign(p.log_prob(w) - q.log_prob(w))
    assert_mean(gain, distance, "what the likelihood ratio tells of the two")
    assert distance <= bound


# five parameterizations, and the KL of a shared α


FORMULAS = {
    "log_uniform": (LogUniformDensity(), approximate_kl),
    "ard": (RelevanceNormal(), ard_kl),
}
ALPHAS = {"layer": 1, "neuron": 4, "weight": 24}


@pytest.mark.checklist("VN11")
@pytest.mark.parametrize("prior", FORMULAS)
@pytest.mark.parametrize("layer", OPS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_shared_alpha_counts_once_for_every_weight(alpha, layer, prior):
    (op, shape, _), (prior, formula) = OPS[layer], FORMULAS[prior]
    posterior = lb.posteriors.VariationalDropout(alpha)(randn(shape), op)
    stored, loc = posterior.log_alpha, op.matrix(posterior.loc)
    assert stored.numel() == ALPHAS[alpha]
    stored.data.normal_()
    log_alpha = stored - 5.0
    torch.testing.assert_close(posterior().variance, log_alpha.exp() * loc.square())
    expected = 24 / stored.numel() * formula(log_alpha).sum()
    assert_same_gradients(kl_divergence(posterior(), prior), expected, [stored])


@pytest.mark.checklist("VN11")
@pytest.mark.parametrize("prior", FORMULAS)
@pytest.mark.parametrize("layer", OPS)
def test_additive_noise_has_free_variances(layer, prior):
    (op, shape, _), (prior, formula) = OPS[layer], FORMULAS[prior]
    posterior = lb.posteriors.VariationalDropout("additive", log_alpha=-2.0)(randn(shape), op)
    loc, stored = op.matrix(posterior.loc), posterior.scale
    torch.testing.assert_close(posterior().variance, math.exp(-2) * loc.square())
    stored.data.normal_()
    expected = formula(stored - 2.0 - loc.square().log()).sum()
    parameters = [posterior.loc, stored]
    assert_same_gradients(kl_divergence(posterior(), prior), expected, parameters)


@pytest.mark.checklist("VN11")
def test_zero_mean_is_what_additive_noise_tends_to():
    posterior = lb.posteriors.ZeroMean()(randn(4, 6), Linear())
    assert posterior.names == ("scale",)
    zero_mean, w = posterior(), randn(5, 4, 6)
    nearly = LocationScale(torch.full((4, 6), 1e-9).double(), zero_mean.scale)
    torch.testing.assert_close(nearly.log_prob(w), zero_mean.log_prob(w), rtol=1e-4, atol=0)


# with tanh and without biases, everything above a dense variance layer has mean zero


@pytest.mark.checklist("VN17")
@pytest.mark.parametrize(
    "estimator", [lb.estimators.local, lb.estimators.weights], ids=["local", "weights"]
)
def test_tanh_has_mean_zero_and_relu_has_not(estimator):
    op, x = Linear(), randn(1, 6)
    q = lb.posteriors.ZeroMean()(randn(5, 6), op)()
    with torch.no_grad():
        h = torch.stack([estimator(q, op, op.usage(x))(x)[0] for _ in range(8000)])
        std = (x.square() @ q.variance.T)[0].sqrt()
    assert_mean(h.tanh(), 0.0, "mean tanh activation")
    assert_mean(h.relu(), std / math.sqrt(2 * math.pi), "mean ReLU activation")


@pytest.mark.checklist("VN17")
@pytest.mark.parametrize(
    ("activation", "bias", "odd"),
    [(nn.Tanh, False, True), (nn.Tanh, True, False), (nn.ReLU, False, False)],
)
def test_tanh_network_without_biases_is_odd_in_its_noise(activation, bias, odd):
    """No draw and its mirror image, which are equally likely, then name the same class."""
    drawn = []

    def first_then_mirrored(q, op, usage):
        drawn.append(-drawn[0] if drawn else q.rsample())
        return FixedMap(op, drawn[-1])

    net = nn.Sequential(
        *(nn.Linear(6, 8, bias), activation(), nn.Linear(8, 8, bias), activation()),
        nn.Linear(8, 3, bias),
    ).double()
    model = lb.convert(
        net, lb.posteriors.ZeroMean(), lb.priors.ARD(), first_then_mirrored, include=("2",)
    )
    x = randn(50, 6)
    logits, mirrored = model(x), model(x)
    assert torch.allclose(mirrored, -logits) is odd
    assert not odd or (logits.argmax(-1) != mirrored.argmax(-1)).all()
    likelihood = torch.stack([logits, mirrored]).log_softmax(-1).mean(0)  # of every class
    assert not odd or likelihood.max() < -math.log(3)


@pytest.mark.parametrize("prior", [lb.priors.LogUniform(), lb.priors.ARD()])
def test_a_scale_that_is_exactly_zero_has_no_kl_and_no_nan(prior):
    """A signed scale that an optimizer moves through zero may land on it."""
    layer = lb.convert(nn.Linear(3, 2), lb.posteriors.ZeroMean(), prior)
    with torch.no_grad():
        layer.posterior.scale[0] = 0.0
    value = lb.kl(layer)
    (gradient,) = torch.autograd.grad(value, layer.posterior.scale, materialize_grads=True)
    assert value.item() == pytest.approx(0.0, abs=1e-6)
    assert torch.equal(gradient, torch.zeros(2, 3))
