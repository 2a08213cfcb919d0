"""Manners in a notebook: objects print what a reader wants to know, in one line or one table."""

import pickle

import pytest
import torch
from torch import nn

import leanbayes as lb


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (lb.KTied(2), "KTied(rank=2)"),
        (lb.MeanField(), "MeanField()"),
        (lb.MeanField(0.1), "MeanField(scale=0.1)"),
        (lb.priors.Normal(0.1, loc=1.0), "Normal(scale=0.1, loc=1.0)"),
        (lb.posteriors.MatrixNormal(rank=2), "MatrixNormal(scale=0.01, rank=2)"),
        (lb.posteriors.Pruned(lb.KTied(3)), "Pruned(base=KTied(rank=3))"),
        (lb.posteriors.Scale(0.5), "Scale(start=0.5)"),
        (lb.training.ParameterCounts(477_600, 4_788, 810),
         "478,410 → 483,198 (+1.0%): means 477,600, scales 4,788, other 810"),
        (lb.training.Elbo(torch.tensor(3.61), torch.tensor(2.3), torch.tensor(1.31), 1.0),
         "loss 3.61 = NLL 2.30 + 1 × KL 1.31 per example"),
        (lb.training.Elbo(torch.tensor(0.25), torch.tensor(0.2), torch.tensor(0.5), 0.1),
         "loss 0.2500 = NLL 0.2000 + 0.1 × KL 0.5000 per example"),
        (lb.metrics.Score(2.3171, 0.0352), "2.317 ± 0.035"),
        (lb.metrics.Score(0.5, 0.0), "0.5 ± 0"),
        (lb.metrics.Score(122.6, 12.0), "123 ± 12"),
        (lb.metrics.Score(0.5, float("nan")), "0.5 ± nan"),
    ],
)  # fmt: skip
def test_reprs_are_short(value, text):
    assert repr(value) == text


def test_a_plan_is_shown_as_its_table():
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    plan = lb.plan(network, lb.KTied(2), lb.priors.Normal(0.2), exclude=["2"])
    heading, *rows = repr(plan).splitlines()
    assert "posterior" in heading
    assert any("KTied(rank=2)" in row and "Normal(scale=0.2)" in row for row in rows)


def test_counts_of_a_model_are_those_before_and_after():
    model = lb.convert(nn.Linear(6, 4), lb.KTied(2), lb.priors.Normal(0.2))
    assert repr(lb.count_parameters(model)).startswith("28 → ")


@pytest.mark.parametrize("name", ["auto", "flipout", "local", "mean", "weights"])
def test_an_estimator_is_a_function_with_a_name(name):
    estimator = getattr(lb.estimators, name)
    assert estimator.__name__ == name
    assert lb.estimators.ESTIMATORS[name] is pickle.loads(pickle.dumps(estimator))
