"""Noise without training: the widest that keeps the loss, against a search and a closed form."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb


def test_the_scale_of_a_linear_regression_has_a_closed_form():
    """``E ½(y − (w + σε)x)² = ½(y − wx)² + ½σ²x²``: the loss rises by ``½ σ² E|x|²``."""
    x, net = torch.randn(300, 5).double(), nn.Linear(5, 1).double()
    y = net(x).detach() + 0.1 * torch.randn(300, 1).double()
    tolerance = 0.03
    found = lb.training.widen(
        net, (x, y), tolerance, likelihood=lb.likelihoods.Gaussian(1.0), samples=300
    )
    expected = (2 * tolerance / x.square().sum(1).mean()).sqrt()
    assert found.scale == pytest.approx(float(expected), rel=0.06)
    assert found.loss == pytest.approx(found.before + tolerance, abs=0.1 * tolerance)
    base = 0.5 * (y - net(x)).square().mean() + 0.5 * torch.log(torch.tensor(2 * torch.pi))
    assert found.before == pytest.approx(float(base.detach()))


def trained():
    y = torch.randint(2, (200,))
    x = torch.randn(200, 1, 4, 4) + (2 * y - 1).view(-1, 1, 1, 1)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    net.append(nn.Linear(16, 2))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(25):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net, x, y


def test_a_trained_network_gets_uncertainty_and_stays_as_it_was():
    net, x, y = trained()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    found = lb.training.widen(net, (x, y), 0.05, samples=10, seed=3)
    assert found.before < found.loss <= found.before + 0.05
    assert found.loss > found.before + 0.04  # nearly all that is allowed
    assert net.training
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    for name, layer in lb.extend.random_maps(found.model):
        assert torch.allclose(layer.posterior().scale, torch.tensor(found.scale)), name
        assert torch.equal(layer.mean_weight, net.get_submodule(name).weight)
    p = lb.predict(found.model, x, samples=10, seed=3)  # the same draws
    assert p.mutual_information.mean() > 1e-3
    assert p.metrics(y)["nll"].value < found.loss  # the average is better than a draw
    wider = lb.training.widen(net, (x, y), 0.5, samples=5)
    assert wider.scale > found.scale


def test_batches_and_seeds():
    net, x, y = trained()
    parts = list(zip(x.split(64), y.split(64), strict=True))
    found = [
        lb.training.widen(net, data, 0.05, include=["4"], samples=10, seed=1)
        for data in ((x, y), (x, y), parts)
    ]
    assert [name for name, _ in lb.extend.random_maps(found[0].model)] == ["4"]
    assert found[0].scale == found[1].scale
    assert found[0].scale == pytest.approx(found[2].scale, rel=0.2)


DATA = torch.randn(4, 3), torch.randint(2, (4,))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: lb.training.widen(nn.Linear(3, 2), DATA, 0.0),
            "tolerance is 0.0; it must be positive",
        ),
        (lambda: lb.training.widen(nn.Linear(3, 2), DATA, samples=0), "samples is 0"),
        (lambda: lb.training.widen(nn.Linear(3, 2), []), "there are no validation examples"),
        (
            lambda: lb.training.widen(
                lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0)), DATA
            ),
            "the model has random weights already",
        ),
        (
            lambda: lb.training.widen(nn.Linear(3, 2), (DATA[0] * torch.nan, DATA[1])),
            "not finite",
        ),
        (
            lambda: lb.training.widen(nn.Linear(3, 2), (torch.zeros(4, 3), DATA[1])),
            "the loss does not rise with noise",
        ),
    ],
)
def test_mistakes_get_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
