"""Metrics against torchmetrics and explicit formulas; their errors against resampling."""

import math

import pytest
import torch
from torchmetrics.functional.classification import multiclass_accuracy

from leanbayes import metrics
from leanbayes.testing import assert_mean

EXAMPLES, CLASSES = 200, 5


@pytest.fixture
def predictions():
    log_probs = torch.randn(EXAMPLES, CLASSES, dtype=torch.float64).log_softmax(-1)
    return log_probs, torch.randint(CLASSES, (EXAMPLES,))


def test_accuracy_is_that_of_torchmetrics_with_a_binomial_error(predictions):
    log_probs, y = predictions
    found = metrics.accuracy(log_probs.exp(), y)
    p = float(multiclass_accuracy(log_probs.exp(), y, CLASSES, average="micro"))
    assert found.value == pytest.approx(p, abs=1e-6)
    assert found.error == pytest.approx(math.sqrt(p * (1 - p) / EXAMPLES), rel=1e-5)


def test_nll_is_the_cross_entropy(predictions):
    log_probs, y = predictions
    expected = float(torch.nn.functional.nll_loss(log_probs, y))
    assert metrics.nll(log_probs, y).value == pytest.approx(expected, rel=1e-12)


def test_kt15_brier_is_one_more_than_the_published_form(predictions):
    log_probs, y = predictions
    p = log_probs.exp()
    published = [sum(v**2 for v in row) - 2 * row[c] for row, c in zip(p.tolist(), y, strict=True)]
    assert metrics.brier(p, y).value == pytest.approx(1 + sum(published) / EXAMPLES, rel=1e-12)


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.brier, metrics.nll])
def test_errors_tell_how_metrics_vary_between_test_sets(metric):
    """A hundred examples' squared error is, on average, the variance of many such averages."""

    def draw():
        truth = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
        y = torch.multinomial(truth, 100, replacement=True)
        log_probs = torch.randn(100, 3, dtype=torch.float64).log_softmax(-1)
        return metric(log_probs if metric is metrics.nll else log_probs.exp(), y)

    found = [draw() for _ in range(2000)]
    values = torch.tensor([estimate.value for estimate in found], dtype=torch.float64)
    claimed = torch.tensor([estimate.error**2 for estimate in found], dtype=torch.float64)
    unbiased = claimed.mean() * 100 / 99
    assert_mean((values - values.mean()).square(), float(unbiased), "variance of the metric")


def test_perfect_predictions_have_no_error():
    y = torch.arange(4)
    probs = torch.eye(4)
    assert metrics.accuracy(probs, y) == (1.0, 0.0)
    assert metrics.brier(probs, y) == (0.0, 0.0)
    assert metrics.nll(probs.log(), y) == (0.0, 0.0)


def test_half_precision_is_averaged_in_double():
    values = torch.full((70_000,), 1.0, dtype=torch.float16)
    assert metrics.average(values) == (1.0, 0.0)


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.brier, metrics.nll])
@pytest.mark.parametrize(
    ("probs", "y", "message"),
    [
        (torch.ones(3), torch.zeros(3, dtype=torch.long), "give .examples, classes."),
        (torch.ones(3, 2), torch.zeros(2, dtype=torch.long), "give .examples, classes."),
        (torch.ones(3, 2), torch.zeros(3), "whole numbers from 0 to 1"),
        (torch.ones(3, 2), torch.tensor([0, 1, 2]), "whole numbers from 0 to 1"),
        (torch.ones(0, 2), torch.zeros(0, dtype=torch.long), "one number for each"),
    ],
    ids=["no classes", "other length", "no integers", "no such class", "empty"],
)
def test_bad_input_is_refused_in_one_sentence(metric, probs, y, message):
    with pytest.raises(ValueError, match=message):
        metric(probs, y)
