"""Spectra of trained weights [k-tied, section 3]."""

import numpy as np
import pytest
import torch
from digits import images, train
from torch import nn

import leanbayes as lb
from leanbayes.analysis.spectrum import explained_shares
from research.publishing.plots import spectra_of


def shares(matrix):
    values = np.linalg.svd(matrix.detach().double().numpy(), compute_uv=False) ** 2
    return torch.tensor(values / values.sum())


def assert_shares(observed, expected):
    torch.testing.assert_close(observed, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    "posterior",
    [
        lb.MeanField(),
        lb.KTied(2),
        lb.posteriors.MatrixNormal(),
        lb.posteriors.VariationalDropout("weight"),
    ],
    ids=repr,
)
def test_shares_are_squared_singular_values_over_their_sum(posterior):
    model = lb.convert(nn.Linear(7, 5), posterior, lb.priors.Normal(1.0)).double()
    q, spectrum = model.posterior(), lb.analysis.spectrum(model)[""]
    assert_shares(spectrum.scale, shares(q.variance.sqrt()))
    assert_shares(spectrum.mean, shares(q.mean))


@pytest.mark.parametrize("build", [nn.Conv2d, nn.ConvTranspose2d])
def test_a_convolution_has_the_spectrum_of_the_papers_flattening(build):
    layer = lb.convert(build(3, 4, (2, 5)), lb.MeanField(), lb.priors.Normal(1.0)).double()
    kernel = layer.mean_weight if build is nn.Conv2d else layer.mean_weight.transpose(0, 1)
    flat = kernel.permute(2, 3, 1, 0).reshape(-1, 4)  # [height · width · in, out]
    assert_shares(lb.analysis.spectrum(layer)[""].mean, shares(flat))


def test_members_of_a_mixture_have_a_spectrum_each():
    model = lb.convert(nn.Linear(7, 5), lb.Rank1(members=3), lb.priors.Normal(0.1, loc=1.0))
    q, spectrum = model.posterior(), lb.analysis.spectrum(model)[""]
    for member in range(3):
        assert_shares(spectrum.scale[member], shares(q.variance[member].sqrt()))
        assert_shares(spectrum.mean[member], shares(q.mean[member]))


def test_what_is_zero_explains_nothing():
    point = lb.analysis.spectrum(
        lb.convert(nn.Linear(7, 5), lb.posteriors.Point(), lb.priors.Normal(1.0))
    )[""]
    variance = lb.analysis.spectrum(
        lb.convert(nn.Linear(7, 5), lb.posteriors.ZeroMean(), lb.priors.Normal(1.0))
    )[""]
    assert torch.equal(point.scale, torch.zeros(5, dtype=torch.float64))
    assert torch.equal(variance.mean, torch.zeros(5, dtype=torch.float64))
    for part in (point.mean, variance.scale):
        torch.testing.assert_close(float(part.sum()), 1.0)


def test_infinite_variances_have_no_spectrum():
    model = lb.convert(
        nn.Linear(7, 5), lb.Rank1(2, factors="cauchy"), lb.priors.Cauchy(0.1, loc=1.0)
    )
    assert lb.analysis.spectrum(model)[""].scale.isnan().all()


def test_every_matrix_of_a_model_has_a_name_and_biases_have_none():
    net = nn.ModuleDict({"lstm": nn.LSTM(4, 3), "out": nn.Linear(3, 2)})
    model = lb.convert(net, lb.MeanField(), lb.priors.Normal(1.0), bias=lb.MeanField())
    spectra = lb.analysis.spectrum(model)
    assert set(spectra) == {"lstm.maps.weight_ih_l0", "lstm.maps.weight_hh_l0", "out"}
    assert set(spectra) < set(lb.named_kl(model))


def test_a_model_without_a_matrix_is_refused():
    with pytest.raises(ValueError, match="convert"):
        lb.analysis.spectrum(nn.Linear(3, 2))


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_shares_do_not_depend_on_the_unit(size):
    matrix = torch.randn(6, 4, dtype=torch.float64)
    assert_shares(explained_shares(size * matrix), shares(matrix))


def test_the_first_values_are_found_without_the_others():
    decay = torch.logspace(0, -3, 40, dtype=torch.float64)
    left, right = (torch.linalg.qr(torch.randn(n, 40, dtype=torch.float64))[0] for n in (90, 60))
    matrix = (left * decay) @ right.T
    state = torch.get_rng_state()
    leading = explained_shares(matrix, most=5)
    assert torch.equal(state, torch.get_rng_state())
    torch.testing.assert_close(
        leading, decay[:5].square() / decay.square().sum(), rtol=1e-6, atol=0
    )


def test_spectra_are_drawn():
    net = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 4))
    for posterior in (lb.MeanField(), lb.Rank1(2), lb.posteriors.ZeroMean()):
        picture = spectra_of(lb.analysis.spectrum(lb.convert(net, posterior)))
        assert picture.startswith(b"\x89PNG")


@pytest.mark.checklist("KT6")
def test_standard_deviations_are_low_rank_and_means_are_not():
    x, y = images()
    net = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    model = lb.convert(net, lb.MeanField(), lb.priors.Normal(0.3))
    train(model, x, y, steps=400, lr=1e-2, batch=200)
    assert (lb.predict(model, x, samples=20).labels == y).float().mean() > 0.9
    spectra = lb.analysis.spectrum(model)
    assert len(spectra) == 3
    for layer in spectra.values():
        assert layer.scale[0] > 0.95
        assert layer.scale[:2].sum() > 0.97
        assert layer.mean[0] < 0.5
        assert layer.mean[:2].sum() < 0.7
    # scales differ within a layer, and their pattern is what has a low rank
    scale = model[2].posterior().scale.detach()
    shuffled = scale.flatten()[torch.randperm(scale.numel())].reshape(scale.shape)
    left = [float(1 - explained_shares(matrix)[:2].sum()) for matrix in (scale, shuffled)]
    assert left[0] < 0.5 * left[1]
