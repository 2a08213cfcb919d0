"""The recurrent network for health records: its first weights, bags of entries, the context."""

import math

import pytest
import torch
from scipy.stats import truncnorm

from leanbayes.testing import assert_mean
from research.networks import build
from research.papers.rank1.health.network import EhrRecurrent

torch.set_num_threads(1)

CUT = truncnorm(-2, 2).var()
"""Variance of a standard normal cut at two standard deviations."""


def test_first_weights_have_the_published_law():
    net = build("ehr-rnn")
    assert type(net) is EhrRecurrent
    values = net.hidden.weight.detach().double().flatten()
    assert_mean(values, 0.0, "hidden.weight")
    assert_mean(values.square(), 2 / 512, "hidden.weight²")
    assert values.abs().max() <= 2 * math.sqrt(2 / 512 / CUT) * (1 + 1e-6)


def test_lstm_starts_as_in_keras():
    lstm = build("ehr-rnn").lstm
    gram = lstm.weight_hh_l0.mT @ lstm.weight_hh_l0
    torch.testing.assert_close(gram, torch.eye(512), atol=1e-5, rtol=0)
    expected = torch.zeros(4, 512)
    expected[1] = 1.0  # input, forget, cell, output
    assert torch.equal(lstm.bias_ih_l0, expected.flatten())
    assert not lstm.bias_hh_l0.requires_grad


def test_padding_starts_at_zero():
    net = ehr()
    assert not net.code_embedding.weight[0].any()
    assert net.code_embedding.weight[1].any()


def ehr(**options):
    return build("ehr-rnn", vocabulary=50, ranges=50, codes=4, measurements=3, **options)


def test_ehr_reads_bags_of_entries_until_the_last_day():
    net, x = ehr(), torch.randint(1, 50, (2, 5, 7))
    y = net(x)
    later = torch.cat([x, torch.zeros(2, 3, 7).long()], 1)
    torch.testing.assert_close(net(later), y)
    shuffled = torch.cat([x[..., :4].flip(-1), x[..., 4:].roll(1, -1)], -1)
    torch.testing.assert_close(net(shuffled), y)
    assert not torch.allclose(net(x.flip(1)), y)
    assert not torch.allclose(net(x.roll(4, -1)), y)


def test_ehr_bag_is_the_mean_of_its_entries():
    net = ehr().double()
    seen = []
    net.lstm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    net(torch.tensor([[[3, 0, 5, 0, 7, 0, 0], [0] * 7]]))
    code, measurement = net.code_embedding.weight, net.measurement_embedding.weight
    expected = torch.cat([(code[3] + code[5]) / 2, measurement[7]])
    torch.testing.assert_close(seen[0][0], torch.stack([expected, torch.zeros_like(expected)]))


def test_ehr_patient_without_entries_and_with_context():
    net = ehr(context=2, outputs=3)
    nothing = torch.zeros(2, 1 + 5, 7).long()
    nothing[:, 0, :2] = torch.tensor([[0, 100], [100, 65]])
    seen = []
    net.hidden.register_forward_pre_hook(lambda _, args: seen.append(args[0][:, -2:]))
    y = net(nothing)
    torch.testing.assert_close(seen[0], torch.tensor([[0.0, 1.0], [1.0, 0.65]]))
    assert torch.isfinite(y).all()
    assert not torch.allclose(y[0], y[1])
    with pytest.raises(ValueError, match="days have 6 entries, and 4 codes and 3 measurements"):
        net(nothing[..., :6])
    with pytest.raises(ValueError, match="a context of 8 numbers does not fit into a row of 7"):
        ehr(context=8)


def test_ehr_context_is_not_an_event():
    """Ages are no codes: the days are read as they are without a context."""
    net = ehr(context=1)
    seen = []
    net.lstm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    days = torch.randint(1, 50, (2, 5, 7))
    for age in (20, 80):
        net(torch.cat([torch.full((2, 1, 7), age), days], 1))
    assert seen[0].shape[1] == 5
    torch.testing.assert_close(seen[0], seen[1])


def test_ehr_drops_bags_states_and_units_in_training_alone():
    net = ehr(dropout=1.0)
    x = torch.randint(1, 50, (2, 5, 7))
    assert net(x).equal(net.dense.bias.expand(2))
    assert not net.eval()(x).equal(net.dense.bias.expand(2))
