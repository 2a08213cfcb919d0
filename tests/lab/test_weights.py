"""What is read from posteriors, against their parameters."""

import numpy
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.analysis.log_alpha import quartiles
from leanbayes.lab.weights import log_alphas, mean_scales, signal_to_noise


def converted(posterior, prior):
    return lb.convert(nn.Linear(6, 5), posterior, prior).double()


@pytest.mark.parametrize("alpha", ["layer", "neuron", "weight", "additive"])
def test_log_alpha_is_the_log_of_variance_over_squared_mean(alpha):
    model = converted(lb.posteriors.VariationalDropout(alpha, -2.0), lb.priors.LogUniform())
    with torch.no_grad():
        for parameter in model.posterior.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    (found,) = log_alphas(model).values()
    q = model.posterior()
    torch.testing.assert_close(found, (q.variance / q.mean.square()).log().detach())


def test_only_dropout_has_log_alphas():
    assert log_alphas(converted(lb.MeanField(), lb.priors.Normal(1.0))) == {}


@pytest.mark.parametrize(
    "posterior",
    [lb.MeanField(0.1), lb.KTied(2), lb.posteriors.MatrixNormal(0.1), lb.posteriors.ZeroMean()],
    ids=str,
)
def test_mean_scale_is_that_of_the_dense_covariance(posterior):
    model = converted(posterior, lb.priors.Flat())
    (found,) = mean_scales(model).values()
    scales = model.posterior().covariance().diagonal().sqrt().detach()
    assert found == pytest.approx(float(scales.mean()))


@pytest.mark.parametrize("posterior", [lb.posteriors.Point(), lb.Rank1(members=2)], ids=str)
def test_points_and_mixtures_have_neither_scale_nor_signal(posterior):
    model = converted(posterior, lb.priors.Normal(1.0, loc=1.0))
    assert mean_scales(model) == {}
    assert signal_to_noise(model) == {}


def test_signal_to_noise_is_mean_over_scale_and_needs_a_mean():
    model = converted(lb.MeanField(0.1), lb.priors.Normal(1.0))
    (ratio,) = signal_to_noise(model).values()
    torch.testing.assert_close(ratio, model.mean_weight.detach().abs() / 0.1)
    assert signal_to_noise(converted(lb.posteriors.ZeroMean(), lb.priors.Flat())) == {}


def test_random_biases_are_no_matrices():
    model = lb.convert(nn.Linear(6, 5), lb.MeanField(), lb.priors.Normal(1.0), bias=lb.MeanField())
    assert len(mean_scales(model)) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_quartiles_are_those_of_numpy(size):
    values = torch.randn(size, dtype=torch.float64)
    expected = numpy.quantile(values.numpy(), (0.25, 0.5, 0.75), method="nearest")
    assert quartiles(values) == pytest.approx(expected.tolist())


def test_infinite_values_have_quartiles():
    assert quartiles(torch.tensor([1.0, float("inf"), 2.0])).median == 2.0
