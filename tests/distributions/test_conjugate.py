"""Bayesian linear regression: the one model whose evidence and posterior are known exactly.

``y = W x + ε`` with prior ``MN(0, I, diag(α)⁻¹)`` and noise precision ``β`` has the posterior
``MN(M, I, V)``, ``V = (β XᵀX + diag α)⁻¹``, ``M = β Yᵀ X V`` [matrix normal, 4.1]. The matrix
normal holds it; the best independent weights miss the evidence by
``out/2 · (Σ log V⁻¹_jj − logdet V⁻¹)``.
Point estimates, discrete weights and rank-one factors have no KL over weights to be compared.
"""

from dataclasses import dataclass

import pytest
import torch
from registry import POSTERIORS
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal

import leanbayes as lb
from leanbayes.distributions import KroneckerNormal, Triangular, WeightDistribution
from leanbayes.testing import assert_mean

OUT, IN, EXAMPLES = 2, 5, 30
NOISE = 0.5
TOLERANCE = 1e-3
ROUNDING = 1e-8

FAMILIES = {
    name: recipe
    for name, recipe in POSTERIORS.items()
    if not isinstance(recipe, lb.posteriors.Point | lb.Rank1 | lb.posteriors.LowRank)
    and recipe != lb.posteriors.ZeroMean("bernoulli")
}
REACH_THE_POSTERIOR = ("matrix_normal", "matrix_normal_plus_diagonal")
REACH_ANY_INDEPENDENT_NORMAL = (
    "mean_field",
    "mean_field_published",
    "mean_field_log_variance",
    "mean_field_signed",
    "k_tied_1",
    "k_tied_2",
    "k_tied_3",
    "matrix_normal_diagonal_factors",
    "dropout_additive",
)
RESTRICTED = sorted(
    set(FAMILIES) - {*REACH_THE_POSTERIOR, *REACH_ANY_INDEPENDENT_NORMAL, "matrix_normal_low_rank"}
)


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@dataclass
class Regression:
    """Correlated inputs, noisy targets and what is known of them."""

    x: Tensor
    y: Tensor
    alpha: Tensor

    @property
    def precision(self) -> Tensor:
        """``V⁻¹``, the posterior precision of each row of ``W``."""
        return self.x.mT @ self.x / NOISE**2 + torch.diag(self.alpha)

    @property
    def posterior(self) -> KroneckerNormal:
        v = torch.linalg.inv(self.precision)
        columns = Triangular(torch.linalg.cholesky(v))
        return KroneckerNormal(
            self.y.mT @ self.x @ v / NOISE**2, Triangular(torch.eye(OUT)), columns
        )

    @property
    def log_evidence(self) -> Tensor:
        """Each output is a normal vector over the examples."""
        covariance = self.x @ torch.diag(1 / self.alpha) @ self.x.mT
        covariance = covariance + NOISE**2 * torch.eye(EXAMPLES)
        return MultivariateNormal(torch.zeros(EXAMPLES), covariance).log_prob(self.y.mT).sum()

    @property
    def best_of_independent_weights(self) -> Tensor:
        gap = self.precision.diagonal().log().sum() - torch.logdet(self.precision)
        return self.log_evidence - 0.5 * OUT * gap

    def prior(self) -> lb.extend.Learned:
        learned = lb.priors.GroupARD()(torch.zeros(OUT, IN)).requires_grad_(False)
        learned.row_precision.zero_()
        learned.column_precision.copy_(self.alpha.log())
        return learned

    def model(self, recipe: lb.posteriors.Posterior) -> lb.extend.Affine:
        layer = lb.convert(nn.Linear(IN, OUT, bias=False), recipe, lb.priors.GroupARD())
        layer.prior = self.prior()
        return layer

    def expected_log_likelihood(self, q: WeightDistribution) -> Tensor:
        """In closed form, since a squared error needs only the first two moments of ``W x``."""
        moments = q.moments(self.x, lb.ops.Linear())
        variance = moments.covariance(lb.ops.Linear()).diagonal(dim1=-2, dim2=-1)
        at_mean = Normal(moments.mean.expand_as(self.y), NOISE).log_prob(self.y)
        return (at_mean - 0.5 * variance / NOISE**2).sum()

    def elbo(self, layer: lb.extend.Affine) -> Tensor:
        nll = -self.expected_log_likelihood(layer.posterior()) / EXAMPLES
        return -EXAMPLES * lb.elbo(nll, lb.kl(layer), data_size=EXAMPLES).loss


@pytest.fixture
def regression(_seed, _float64) -> Regression:
    mixing = torch.eye(IN) + 0.7
    x = torch.randn(EXAMPLES, IN) @ mixing
    y = x @ torch.randn(IN, OUT) + NOISE * torch.randn(EXAMPLES, OUT)
    return Regression(x, y, alpha=0.5 + torch.rand(IN))


def train(regression: Regression, layer: lb.extend.Affine) -> Tensor:
    """Maximize the ELBO from where the layer is, and say how far it got."""
    optimizer = torch.optim.LBFGS(
        [p for p in layer.parameters() if p.requires_grad],
        max_iter=200,
        history_size=50,
        tolerance_grad=1e-7,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        loss = -regression.elbo(layer)
        loss.backward()
        return loss

    optimizer.step(closure)
    return regression.elbo(layer).detach()


def test_independent_weights_lose_far_more_than_the_tolerance(regression):
    assert regression.log_evidence - regression.best_of_independent_weights > 100 * TOLERANCE


@pytest.mark.checklist("MN6")
def test_the_exact_posterior_explains_the_evidence_at_every_weight(regression):
    """``log p(y | W) + log p(W) − log q(W)`` is the log evidence whatever ``W``."""
    q = regression.posterior
    w = q.rsample((10,))
    predicted = torch.einsum("ni,soi->sno", regression.x, w)
    likelihood = Normal(predicted, NOISE).log_prob(regression.y).sum((-2, -1))
    prior = regression.prior()().log_prob(w).sum((-2, -1))
    explained = likelihood + prior - q.log_prob(w)
    torch.testing.assert_close(explained, regression.log_evidence.expand(10), rtol=0, atol=ROUNDING)


@pytest.mark.checklist("MN6")
def test_the_elbo_of_the_exact_posterior_is_the_log_evidence(regression):
    q = regression.posterior
    kl = torch.distributions.kl_divergence(q, regression.prior()())
    elbo = regression.expected_log_likelihood(q) - kl
    torch.testing.assert_close(elbo, regression.log_evidence, rtol=0, atol=ROUNDING)


@pytest.mark.checklist("MN6")
def test_at_the_exact_posterior_the_elbo_has_the_evidence_gradient_of_the_prior(regression):
    q, learned = regression.posterior, regression.prior().requires_grad_()
    alpha = learned.column_precision
    by_kl = torch.autograd.grad(-torch.distributions.kl_divergence(q, learned()), alpha)[0]
    log_alpha = regression.alpha.log().requires_grad_()
    evidence = Regression(regression.x, regression.y, log_alpha.exp()).log_evidence
    by_evidence = torch.autograd.grad(evidence, log_alpha)[0]
    torch.testing.assert_close(by_kl, by_evidence, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.checklist("MN6")
@pytest.mark.parametrize("name", REACH_THE_POSTERIOR)
def test_the_trained_matrix_normal_reaches_the_log_evidence(name, regression):
    """So does the matrix normal plus a diagonal, as its diagonal vanishes."""
    layer = regression.model(FAMILIES[name])
    elbo = train(regression, layer)
    assert elbo <= regression.log_evidence + ROUNDING
    assert elbo == pytest.approx(float(regression.log_evidence), abs=TOLERANCE)
    q, exact = layer.posterior(), regression.posterior
    torch.testing.assert_close(q.mean, exact.mean, rtol=0, atol=0.01)
    torch.testing.assert_close(q.covariance(), exact.covariance(), rtol=0, atol=1e-3)


@pytest.mark.checklist("MN6")
@pytest.mark.parametrize("name", REACH_ANY_INDEPENDENT_NORMAL)
def test_independent_weights_reach_their_own_optimum_below_the_evidence(name, regression):
    elbo = train(regression, regression.model(FAMILIES[name]))
    assert elbo == pytest.approx(float(regression.best_of_independent_weights), abs=TOLERANCE)


@pytest.mark.checklist("MN6")
@pytest.mark.parametrize("name", RESTRICTED)
def test_restricted_independent_weights_stay_below_that_optimum(name, regression):
    layer = regression.model(FAMILIES[name])
    start = regression.elbo(layer)
    elbo = train(regression, layer)
    assert start < elbo <= regression.best_of_independent_weights + ROUNDING


@pytest.mark.checklist("MN6")
def test_factors_of_low_rank_come_between(regression):
    """A diagonal plus rank two is not every covariance of five weights."""
    elbo = train(regression, regression.model(lb.posteriors.MatrixNormal(rank=2)))
    assert regression.best_of_independent_weights + TOLERANCE < elbo
    assert elbo < regression.log_evidence - TOLERANCE


@pytest.mark.parametrize("coherent", [False, True], ids=["local", "weights"])
@pytest.mark.parametrize("name", FAMILIES)
def test_sampled_log_likelihoods_average_to_the_closed_form(name, coherent, regression):
    layer = regression.model(FAMILIES[name])
    prediction = lb.predict(
        layer,
        regression.x,
        samples=1000,
        coherent=coherent,
        likelihood=lb.likelihoods.Gaussian(NOISE),
    )
    log_likelihoods = prediction.likelihood.log_prob(prediction.samples, regression.y).sum(-1)
    expected = regression.expected_log_likelihood(layer.posterior()).detach()
    assert_mean(log_likelihoods, expected, f"log likelihood of {name}")
