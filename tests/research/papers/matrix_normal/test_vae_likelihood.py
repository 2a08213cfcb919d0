"""Importance sampling is exact where the likelihood is known: linear models and quadrature."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Bernoulli, MultivariateNormal, Normal

from leanbayes.lab.data import Examples
from leanbayes.lab.data.dataset import Scaling
from leanbayes.testing import assert_mean, threshold
from research.papers.matrix_normal.vae.likelihood import (
    LogLikelihood,
    importance_sampled,
    log_likelihood,
)
from research.papers.matrix_normal.vae.network import (
    LatentPosterior,
    Vae,
    _dense_factor,
    scored_draws,
)
from research.papers.matrix_normal.vae.train import evidence_bound

torch.set_num_threads(1)
FAMILIES = [("diag", (6,)), ("mn", (3, 2)), ("mv", (6,))]


class LinearGaussian:
    """``z ~ N(0, I)``, ``x ~ N(W z + b, s² I)``: everything about it is known."""

    def __init__(self, examples=7, pixels=5, size=3, noise=0.4):
        self.w, self.b = torch.randn(pixels, size).double(), torch.randn(pixels).double()
        self.noise, self.size = noise, size
        z = torch.randn(examples, size).double()
        self.x = z @ self.w.T + self.b + noise * torch.randn(examples, pixels).double()

    def log_likelihood(self):
        covariance = self.w @ self.w.T + self.noise**2 * torch.eye(len(self.b)).double()
        return MultivariateNormal(self.b, covariance).log_prob(self.x)

    def posterior(self, widened=1.0):
        precision = torch.eye(self.size).double() + self.w.T @ self.w / self.noise**2
        covariance = precision.inverse()
        loc = (self.x - self.b) @ self.w @ covariance / self.noise**2
        return MultivariateNormal(loc, widened**2 * covariance)

    def log_weights(self, q):
        def draw(count):
            z = q.sample((count,))
            likelihood = Normal(z @ self.w.T + self.b, self.noise).log_prob(self.x).sum(-1)
            return likelihood + Normal(0.0, 1.0).log_prob(z).sum(-1) - q.log_prob(z)

        return draw


@pytest.mark.checklist("MN12")
def test_the_exact_posterior_gives_the_exact_likelihood_without_variance():
    model = LinearGaussian()
    estimate = importance_sampled(model.log_weights(model.posterior()), 10, at_once=3)
    torch.testing.assert_close(estimate.log_likelihood, model.log_likelihood())
    torch.testing.assert_close(estimate.bound, model.log_likelihood())
    assert estimate.error.max() < 1e-6
    torch.testing.assert_close(estimate.effective, torch.full((7,), 10.0).double())


def test_another_proposal_is_right_within_its_standard_error():
    """A factor of 1.01 in the likelihood would be thirty standard errors."""
    model = LinearGaussian()
    estimate = importance_sampled(model.log_weights(model.posterior(1.3)), 200_000, at_once=9_999)
    deviations = (estimate.log_likelihood - model.log_likelihood()) / estimate.error
    assert estimate.error.max() < 0.003
    assert deviations.abs().max() < threshold(len(deviations))
    assert (estimate.bound < estimate.log_likelihood).all()


def test_the_standard_error_is_the_spread_of_repeated_estimates():
    model = LinearGaussian(examples=4000, size=2)
    estimate = importance_sampled(model.log_weights(model.posterior(1.2)), 500)
    squares = ((estimate.log_likelihood - model.log_likelihood()) / estimate.error).square()
    assert_mean(squares, 1.0, "squared deviations in standard errors")


def test_a_stream_is_one_sum_and_far_weights_neither_overflow_nor_vanish():
    weights = 400 * torch.randn(1000, 3).double() + torch.tensor([-5000.0, 0.0, 5000.0]).double()
    parts = list(weights.split(70))
    stream = importance_sampled(lambda count: parts.pop(0), 1000, at_once=70)
    torch.testing.assert_close(stream.log_likelihood, weights.logsumexp(0) - math.log(1000))
    torch.testing.assert_close(stream.bound, weights.mean(0))
    shares = weights.softmax(0)
    torch.testing.assert_close(stream.effective, 1 / shares.square().sum(0))
    spread = shares.std(0) / shares.mean(0) / math.sqrt(1000)
    torch.testing.assert_close(stream.error, spread)


def test_weights_of_zero_say_so():
    estimate = importance_sampled(lambda count: torch.full((count, 1), -math.inf), 4, at_once=2)
    assert estimate.log_likelihood.item() == -math.inf
    with pytest.raises(ValueError, match="samples is 1; it must be at least 2"):
        importance_sampled(lambda count: torch.zeros(count), 1)


@pytest.mark.parametrize(("family", "shape"), FAMILIES)
def test_draws_with_their_densities(family, shape):
    latent = LatentPosterior(family, shape)
    q = latent(torch.randn(3, latent.outputs).double() / 2)
    z, density = scored_draws(q, 20_000)
    assert z.shape == (20_000, 3, 6)
    torch.testing.assert_close(density, q.log_prob(z))
    assert_mean(z, q.mean, "means")
    other = q.sample((20_000,)) - q.mean
    moments = [(draws.unsqueeze(-1) * draws.unsqueeze(-2)).mean(0) for draws in (z - q.mean, other)]
    torch.testing.assert_close(*moments, atol=0.1 * float(q.variance.max()), rtol=0)


@pytest.mark.parametrize(("family", "shape"), FAMILIES)
def test_log_weights_against_the_formula_written_out(family, shape):
    model = Vae(family, shape, inputs=20, hidden=(8, 7)).double()
    x, z = torch.rand(3, 1, 4, 5).round().double(), torch.randn(5, 3, 6).double()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    pixels = Bernoulli(logits=model.decoder(z.flatten(0, 1)).view(5, 3, 20))
    expected = pixels.log_prob(x.flatten(1)).sum(-1) + Normal(0.0, 1.0).log_prob(z).sum(-1)
    torch.testing.assert_close(model.log_joint(x, z), expected)
    assert model.log_weights(x, 4).shape == (4, 3)


@pytest.mark.checklist("MN12")
@pytest.mark.parametrize(("family", "shape"), [("diag", (2,)), ("mn", (2, 1)), ("mv", (2,))])
def test_an_auto_encoder_against_quadrature(family, shape):
    model = Vae(family, shape, inputs=12, hidden=(8,))
    for parameter in model.encoder.parameters():  # posteriors near the prior, with correlations
        parameter.data = 0.1 * torch.randn_like(parameter)
    images = Examples(torch.randint(2, (30, 12), dtype=torch.uint8), None, Scaling())
    axis = torch.linspace(-8, 8, 161)
    grid = torch.cartesian_prod(axis, axis).unsqueeze(1).expand(-1, 30, -1)
    with torch.no_grad():
        log_joint = model.double().log_joint(images.x.double(), grid.double())
    exact = (log_joint.logsumexp(0) + 2 * math.log(0.1)).mean()
    judged = log_likelihood(model.float(), images, samples=10_000)
    assert judged.sampling_error < 0.02
    assert abs(judged.score.value - exact) < threshold(1) * judged.sampling_error
    assert (judged.images, judged.samples) == (30, 10_000)
    bound = evidence_bound(model, images, draws=400).bound
    assert judged.bound.value == pytest.approx(bound, abs=0.1)
    assert judged.bound.value < judged.score.value


def test_a_likelihood_does_not_touch_torchs_noise_and_repeats():
    model = Vae("mn", (2, 2), inputs=12, hidden=(8,))
    images = Examples(torch.randint(2, (13, 12), dtype=torch.uint8), None, Scaling())
    before = torch.get_rng_state()
    one, other = (log_likelihood(model, images, samples=50) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert one == other


def test_parts_merge_to_the_whole():
    model = Vae("diag", (2,), inputs=12, hidden=(8,))
    images = Examples(torch.randint(2, (27, 12), dtype=torch.uint8), None, Scaling())
    parts = [log_likelihood(model, images[rows], samples=6) for rows in map(slice, (0, 7), (7, 27))]
    sizes = [7, 20]
    whole = LogLikelihood.merged(parts)
    assert (whole.images, whole.samples) == (27, 6)
    moments = [(p.score.value, n * p.score.error**2) for p, n in zip(parts, sizes, strict=True)]
    draws = torch.cat(
        [
            torch.tensor([m + s**0.5, m - s**0.5]).repeat(n)
            for (m, s), n in zip(moments, sizes, strict=True)
        ]
    )  # two-point laws with the same means and variances
    assert whole.score.value == pytest.approx(float(draws.double().mean()))
    expected = float(draws.double().std(correction=0)) / math.sqrt(27)
    assert whole.score.error == pytest.approx(expected, rel=1e-5)
    sampling = math.hypot(*(p.sampling_error * n for p, n in zip(parts, sizes, strict=True))) / 27
    assert whole.sampling_error == pytest.approx(sampling)


def test_gradients_of_the_bound_are_finite():
    for family, shape in FAMILIES:
        model = Vae(family, shape, inputs=12, hidden=(8,))
        x = torch.randint(2, (5, 12)).float()
        F.softplus(-model.log_weights(x, 3)).sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def smallest_gap(family, shape, precision):
    """How far the best bound of a family is below the likelihood, in nats.

    Args:
        family: of the latent posterior.
        shape: of the latent vector.
        precision: of the exact posterior, a normal.
    """
    head = LatentPosterior(family, shape)
    outputs = torch.zeros(1, head.outputs, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([outputs], max_iter=300, line_search_fn="strong_wolfe")
    size = len(precision)

    def gap():
        q = head(outputs)
        factor = _dense_factor(q)[0]
        mean = q.mean[0]
        trace = (factor.mT @ precision @ factor).trace() + mean @ precision @ mean
        log_scale = factor.diagonal().log().sum()
        return 0.5 * (trace - size - torch.logdet(precision)) - log_scale

    def step():
        optimizer.zero_grad()
        value = gap()
        value.backward()
        return value

    optimizer.step(step)
    return float(gap().detach())


@pytest.mark.checklist("MN12")
def test_a_full_covariance_is_exact_and_a_matrix_normal_where_the_posterior_is_one():
    """Elsewhere a matrix normal may be worse than independent numbers: neither contains both."""
    rows, columns = (torch.randn(n, n).double() for n in (3, 2))
    kronecker = torch.kron(*(m @ m.mT + 0.2 * torch.eye(len(m)).double() for m in (rows, columns)))
    loadings = torch.randn(5, 6).double()
    linear = torch.eye(6).double() + loadings.mT @ loadings / 0.4**2
    gaps = {
        name: {family: smallest_gap(family, shape, precision) for family, shape in FAMILIES}
        for name, precision in (("kronecker", kronecker), ("linear", linear))
    }
    for of in gaps.values():
        assert of["mv"] == pytest.approx(0, abs=1e-4)
        assert of["diag"] > 0.1
    assert gaps["kronecker"]["mn"] == pytest.approx(0, abs=1e-4)
    assert gaps["linear"]["mn"] > 0.1
    uneven = torch.diag(torch.tensor([1.0, 50.0, 50.0, 1.0, 1.0, 50.0]).double())
    assert smallest_gap("diag", (6,), uneven) < 1e-4 < 0.1 < smallest_gap("mn", (3, 2), uneven)
