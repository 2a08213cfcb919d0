"""Metrics and predictions take the targets of NumPy, pandas and lists as they take tensors."""

import numpy as np
import pytest
import torch

import leanbayes as lb
from leanbayes.metrics.scores import as_tensor
from leanbayes.prediction.prediction import Prediction

pandas = pytest.importorskip("pandas")
CLASSES = [0, 2, 1, 2]
KINDS = {
    "list": list,
    "array": np.array,
    "int32": lambda y: np.array(y, dtype="int32"),
    "int8": lambda y: torch.tensor(y, dtype=torch.int8),
    "series": pandas.Series,
    "read-only": lambda y: np.broadcast_to(np.array(y), (1, len(y)))[0],
}

pytestmark = pytest.mark.usefixtures("_seed")


@pytest.fixture
def classes(_seed):
    return Prediction(torch.randn(5, 4, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_targets_of_any_kind_give_the_scores_of_a_tensor(classes, kind):
    y, same = KINDS[kind](CLASSES), torch.tensor(CLASSES)
    assert classes.metrics(y) == classes.metrics(same)
    assert torch.equal(classes.log_likelihood(y), classes.log_likelihood(same))
    assert torch.equal(classes.calibration(y).examples, classes.calibration(same).examples)
    torch.testing.assert_close(tuple(classes.rejection(y)), tuple(classes.rejection(same)))
    for metric in (lb.metrics.accuracy, lb.metrics.brier, lb.metrics.calibration_error):
        assert metric(classes.probs, y) == metric(classes.probs.numpy(), same)


def test_numbers_and_scores_of_arrays():
    p = Prediction(torch.randn(9, 4, 1), lb.likelihoods.Gaussian(0.5))
    y = np.random.default_rng(0).normal(size=(4, 1))
    assert p.metrics(y) == p.metrics(torch.tensor(y))
    assert torch.equal(p.cdf(y), p.cdf(torch.tensor(y)))
    found = lb.metrics.auroc(np.array([0.1, 0.4, 0.3, 0.9]), np.array([False, True, False, True]))
    assert found.value == 1.0


def test_the_callers_array_stays_as_it_is():
    y = np.arange(3)
    as_tensor(y)
    assert y.dtype == np.int64
    assert as_tensor(torch.tensor([True])).dtype == torch.bool
