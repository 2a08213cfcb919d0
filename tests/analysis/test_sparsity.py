"""What is left of a network is counted [matrix normal, tables 1–2]."""

import re

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import leanbayes as lb
from leanbayes.analysis.sparsity import Remaining, multiply_adds
from leanbayes.lab.architectures import ARCHITECTURES
from research import extensions  # noqa: F401

FAMILIES = [
    lb.MeanField(),
    lb.KTied(2),
    lb.posteriors.MatrixNormal(),
    lb.posteriors.MatrixNormal(diagonal=True),
]


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, groups=2),
        nn.ReLU(),
        nn.ConvTranspose2d(6, 4, 2, stride=2),
        nn.Flatten(),
        nn.Linear(4 * 36, 10),
    )


@pytest.mark.checklist("MN9")
@pytest.mark.parametrize("posterior", FAMILIES, ids=repr)
def test_weights_rows_and_columns_are_those_of_the_mask(posterior):
    model = lb.convert(convolutional(), posterior, lb.priors.GroupARD())
    model = lb.prune(model, by="snr", keep=0.3)
    model = lb.prune(model, by="snr", groups="row", keep=0.5)
    report = lb.analysis.sparsity_report(model)
    for name, layer in lb.extend.random_maps(model):
        mask, row = layer.posterior.mask.tolist(), report[name]
        assert row.weights == (sum(map(sum, mask)), len(mask) * len(mask[0]))
        assert row.rows == (sum(map(any, mask)), len(mask))
        columns = list(zip(*mask, strict=True))
        assert row.columns == (sum(map(any, columns)), len(columns))
        assert row.multiply_adds is None
    assert report.total.weights.left == sum(row.weights.left for row in report.layers)


@pytest.mark.checklist("MN9")
def test_the_published_network_has_the_published_totals():
    """62,270 weights; at twice the width 4,527 inputs and 540 outputs of twelve convolutions."""
    vgg = ARCHITECTURES["vgg-small"]
    once = lb.analysis.sparsity_report(lb.convert(vgg(width=1), lb.KTied(), lb.priors.Normal(1.0)))
    assert once.total.weights == (62270, 62270)
    twice = lb.analysis.sparsity_report(lb.convert(vgg(width=2), lb.KTied(), lb.priors.Normal(1.0)))
    assert twice.total.weights.of == 246940
    convolutions = twice.layers[:12]
    assert sum(row.columns.of for row in convolutions) == 4527
    assert sum(row.rows.of for row in convolutions) == 540
    assert twice.dropped() == "-".join(["0"] * len(twice.layers))


@pytest.mark.checklist("MN9")
def test_percentages_are_printed_as_in_the_paper():
    model = lb.convert(nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10)), *_priors())
    with torch.no_grad():
        model[0].posterior.mask[:3] = False
        model[1].posterior.mask[:, :6] = False
        model[1].posterior.mask[0, 6] = False
    report = lb.analysis.sparsity_report(model)
    assert report.dropped() == report.dropped("weights") == "30-61"
    assert report.dropped("rows") == "30-0"
    assert report.dropped("columns") == "0-60"
    assert str(report).splitlines() == [
        "layer     weights  dropped      rows  dropped   columns  dropped  multiply-adds",
        "0       70 of 100      30%   7 of 10      30%  10 of 10       0%              –",
        "1       39 of 100      61%  10 of 10       0%   4 of 10      60%              –",
        "all    109 of 200      46%  17 of 20      15%  14 of 20      30%              –",
    ]


def _priors():
    return lb.posteriors.Pruned(lb.MeanField()), lb.priors.Normal(1.0)


@pytest.mark.parametrize("bayesian", [False, True])
def test_multiply_adds_are_half_of_the_flops_that_torch_counts(bayesian):
    net, x = convolutional(), torch.randn(5, 3, 8, 8)
    model = lb.convert(net, lb.MeanField(), lb.priors.Normal(1.0)) if bayesian else net
    ours = multiply_adds(model, x)
    assert list(ours) == ["0", "2", "4", "6"]
    with FlopCounterMode(display=False) as counter:
        net(x)
    assert 2 * 5 * sum(ours.values()) == counter.get_total_flops()
    report = lb.analysis.sparsity_report(model, x)
    assert report.total.multiply_adds == sum(ours.values())
    assert "3" not in ours


def test_a_layer_that_is_called_twice_is_counted_twice():
    shared = nn.Linear(4, 4)
    assert multiply_adds(nn.Sequential(shared, shared), torch.randn(3, 4)) == {"0": 32}
    assert multiply_adds(nn.Linear(4, 4), torch.randn(3, 7, 4)) == {"": 7 * 16}


def test_pruning_saves_no_multiply_adds_and_compaction_does():
    x = torch.randn(5, 6)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    pruned = lb.deterministic(
        lb.prune(
            lb.convert(net, lb.MeanField(), lb.priors.ARD()), groups="row", keep=0.5, include=["0"]
        )
    )
    small, report = lb.compact(pruned, x)
    counts = [lb.analysis.sparsity_report(m, x).total.multiply_adds for m in (net, pruned, small)]
    assert counts == [64, 64, 32]
    assert report.multiply_adds == (64, 32)


def test_plain_layers_count_by_their_zeros_and_biases_do_not_count():
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    with torch.no_grad():
        net[0].weight[0, 0] = 0.0
    model = lb.convert(
        net, lb.MeanField(), lb.priors.Normal(1.0), bias=lb.MeanField(), include=("1",)
    )
    report = lb.analysis.sparsity_report(model)
    assert [row.name for row in report.layers] == ["0", "1"]
    assert report["0"].weights == Remaining(5, 6)
    assert report["1"].weights == Remaining(4, 4)


def test_mixtures_and_recurrent_layers_have_rows_too():
    model = lb.convert(nn.LSTM(3, 4), lb.Rank1(2), lb.priors.Normal(0.1, loc=1.0))
    report = lb.analysis.sparsity_report(model)
    assert sum(row.weights.of for row in report.layers) == 16 * 3 + 16 * 4


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: lb.analysis.sparsity_report(nn.ReLU()),
            "the model has no weight matrix; give one with",
        ),
        (lambda: lb.analysis.sparsity_report(nn.Linear(3, 2))["x"], "layer 'x' is unknown"),
        (
            lambda: lb.analysis.sparsity_report(nn.Linear(3, 2)).dropped("row"),
            "did you mean 'rows'?",
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        call()
