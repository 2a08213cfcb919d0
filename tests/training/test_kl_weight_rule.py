"""The recommended KL weight: its formula, and where it is used."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.training.schedules import random_weights


def test_the_rule_counts_random_weights_and_examples():
    net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    model = lb.convert(net)
    assert random_weights(model) == 300
    assert lb.training.recommended_kl_weight(model, 60) == pytest.approx(0.1)
    assert lb.training.recommended_kl_weight(model, 10_000) == 0.5
    half = lb.convert(net, exclude=["2"])
    assert lb.training.recommended_kl_weight(half, 60) == pytest.approx(0.15)
    with pytest.raises(ValueError, match="data_size must be positive, got 0"):
        lb.training.recommended_kl_weight(model, 0)


def test_elbo_of_a_model_uses_the_rule_and_of_a_kl_the_whole_kl():
    model, nll = lb.convert(nn.Linear(10, 5)), torch.tensor(1.0)
    whole, ruled = lb.elbo(nll, lb.kl(model), data_size=20), lb.elbo(nll, model, data_size=20)
    assert (whole.weight, ruled.weight) == (1.0, 0.2)
    torch.testing.assert_close(ruled.kl, whole.kl)
    assert lb.elbo(nll, model, data_size=20, weight=0.5).weight == 0.5


def test_fit_ends_with_the_rule():
    model = lb.convert(nn.Linear(10, 5))
    data = torch.randn(20, 10), torch.randint(5, (20,))
    assert lb.fit(model, data, epochs=5)[-1]["weight"] == pytest.approx(0.2)
    assert lb.fit(model, data, epochs=5, kl_weight=1.0)[-1]["weight"] == 1


def test_a_plain_network_has_weight_one():
    assert lb.training.recommended_kl_weight(nn.Linear(10, 5), 3) == 1
