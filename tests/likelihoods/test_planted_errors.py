"""Parts of likelihoods in which planted errors had passed."""

import math

import pytest
import torch

from leanbayes.likelihoods import Bernoulli, Categorical, Gaussian, Poisson, StudentTNoise
from leanbayes.likelihoods.base import FromMoments
from leanbayes.likelihoods.mixtures import scores_of_classes
from leanbayes.testing.assertions import assert_mean


@pytest.mark.parametrize("classes", [2, 300])
def test_class_probabilities_are_over_the_last_dimension(classes):
    outputs = torch.randn(2, 3, classes, dtype=torch.float64)
    expected = outputs - outputs.logsumexp(-1, keepdim=True)
    torch.testing.assert_close(Categorical().class_log_probs(outputs), expected)


def test_mutual_information_of_two_certain_samples_is_one_bit():
    certain = torch.tensor([[[1.0, 1e-12]], [[1e-12, 1.0]]]).double().log()
    found = scores_of_classes(certain, torch.tensor([0]))
    assert found["mutual_information"].value == pytest.approx(math.log(2))
    unsure = torch.tensor([[[0.7, 0.3]]]).double().log()
    agreed = scores_of_classes(unsure.expand(2, -1, -1), torch.tensor([0]))
    assert agreed["mutual_information"].value == pytest.approx(0, abs=1e-9)


def test_binary_targets_are_looked_at():
    with pytest.raises(ValueError, match="targets go from 0 to 2"):
        Bernoulli().nll(torch.zeros(2, 1), torch.tensor([[0.0], [2.0]]))
    with pytest.raises(ValueError, match="targets go from 0 to 2"):
        Bernoulli().check(torch.zeros(1, 2, 1), torch.tensor([[0.0], [2.0]]))


@pytest.mark.parametrize("kind", [Bernoulli, Poisson])
def test_targets_that_are_not_finite_are_counted(kind):
    y = torch.tensor([[1.0], [math.nan], [0.0]])
    kind().check(torch.full((1, 3, 1), math.inf), y.nan_to_num())
    with pytest.raises(ValueError, match=r"targets of 1 examples are not finite, .* \[1\]"):
        kind().check(torch.zeros(1, 3, 1), y)


def test_a_normal_of_moments_adds_variances():
    law = FromMoments(Gaussian(0.6))
    loc, variance = torch.tensor([[1.0, -2.0]]).double(), torch.tensor([[0.64, 0.0]]).double()
    found = law.distribution(law.outputs(loc, variance))
    torch.testing.assert_close(found.mean, loc)
    torch.testing.assert_close(found.stddev, torch.tensor([[1.0, 0.6]]).double())


@pytest.mark.parametrize("kind", [Gaussian, StudentTNoise])
def test_predicted_noise_is_averaged_over_raw_scales(kind):
    """Against draws of both outputs: the number beside is softplus of a raw one."""
    law = kind(0.5, noise="predicted")
    loc = torch.tensor([[0.3, -1.0, 0.8, -0.5]]).double()
    variance = torch.tensor([[0.4, 0.1, 0.2, 1.5]]).double()
    found = law.from_moments(loc, variance)
    noise = torch.randn(100_000, 1, 4, dtype=torch.float64)
    each = law.distribution(loc + variance.sqrt() * noise)
    assert_mean(each.mean - found.mean, 0.0, "mean")
    about = (each.mean - found.mean).square() + each.variance
    assert_mean(about - found.variance, 0.0, "variance")
