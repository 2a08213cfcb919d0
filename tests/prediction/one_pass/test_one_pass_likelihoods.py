"""What likelihoods answer from moments of outputs, against many draws of the outputs."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.likelihoods import Categorical, Gaussian, NegativeBinomial, Poisson, StudentTNoise
from leanbayes.testing import assert_mean

LAWS = {
    "normal": Gaussian(0.6),
    "t": StudentTNoise(0.5, df=5.0),
    "Poisson": Poisson(),
    "negative binomial": NegativeBinomial(0.4, "fixed"),
}
COUNTS = ("Poisson", "negative binomial")
"""Their quantiles are whole numbers, and may be one off."""


@pytest.mark.parametrize("name", LAWS)
def test_mean_and_variance_are_those_of_the_mixture(name):
    law = LAWS[name]
    loc, variance = torch.tensor([[0.3, -1.0, 0.8], [0.4, 0.1, 0.02]]).double().unsqueeze(1)
    found = law.from_moments(loc, variance)
    each = law.distribution(loc + variance.sqrt() * torch.randn(200_000, 1, 3).double())
    assert_mean(each.mean - found.mean, 0.0, "mean")
    about = (each.mean - found.mean).square() + each.variance
    assert_mean(about - found.variance, 0.0, "variance")


@pytest.fixture(scope="module")
def linear():
    """A layer whose outputs are exactly normal, and inputs."""
    torch.manual_seed(0)
    return lb.convert(nn.Linear(3, 1), lb.KTied(2, 0.3), lb.priors.Normal(1.0)), torch.randn(6, 3)


@pytest.mark.parametrize("name", LAWS)
def test_intervals_and_quantiles_are_those_of_many_samples(linear, name):
    model, x = linear
    once = lb.predict(model, x, method="moments", likelihood=LAWS[name])
    many = lb.predict(model, x, samples=4000, seed=0, likelihood=LAWS[name])
    unit = many.variance.sqrt()
    limit = 1.01 / float(unit.min()) if name in COUNTS else 0.1
    levels = [0.05, 0.25, 0.5, 0.75, 0.95]
    for ask in (lambda p: p.quantiles(levels), lambda p: torch.stack(p.interval(0.9))):
        assert ((ask(once) - ask(many)).abs() / unit).max() < limit
    assert torch.allclose(once.mean, many.mean, atol=0.1 * float(unit.max()))


def test_mutual_information_of_classes_is_that_of_many_samples():
    torch.manual_seed(0)
    model = lb.convert(nn.Linear(3, 4), lb.KTied(2, 0.5), lb.priors.Normal(1.0))
    x = torch.randn(8, 3)
    once = lb.predict(model, x, method="moments", samples=256, likelihood=Categorical())
    many = lb.predict(model, x, samples=4000, seed=0)
    assert many.mutual_information.max() > 0.1
    torch.testing.assert_close(
        once.mutual_information, many.mutual_information, atol=0.03, rtol=0.15
    )
