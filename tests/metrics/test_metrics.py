"""Metrics against torchmetrics and explicit formulas; their errors against resampling."""

import itertools
import math

import pytest
import torch
from torch.distributions import Categorical, kl_divergence
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_average_precision,
    multiclass_accuracy,
    multiclass_calibration_error,
)

from leanbayes import metrics
from leanbayes.testing import assert_mean, threshold

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


@pytest.mark.checklist("KT15")
def test_brier_is_one_more_than_the_published_form(predictions):
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


SAMPLES = 6


@pytest.fixture
def samples():
    """Log probabilities of several samples, and the classes that examples have."""
    log_probs = 2 * torch.randn(SAMPLES, EXAMPLES, CLASSES, dtype=torch.float64)
    return log_probs.log_softmax(-1), torch.randint(CLASSES, (EXAMPLES,))


def over_pairs(log_probs, compare, pairs=itertools.combinations):
    """Every pair of samples by itself, averaged over pairs: one number an example."""
    return torch.stack([compare(a, b) for a, b in pairs(log_probs, 2)]).mean(0)


def differ(a, b):
    return (a.argmax(-1) != b.argmax(-1)).double()


@pytest.mark.checklist("R16")
def test_disagreement_is_counted_over_all_pairs(samples):
    log_probs, _ = samples
    expected = over_pairs(log_probs, differ).numpy()
    found = metrics.disagreement(log_probs)
    assert found.value == pytest.approx(expected.mean(), rel=1e-12)
    assert found.error == pytest.approx(expected.std() / math.sqrt(EXAMPLES), rel=1e-12)
    assert 0.5 < found.value < 1


@pytest.mark.checklist("R16")
def test_diversity_is_disagreement_over_errors(samples):
    log_probs, y = samples
    wrong = (log_probs.argmax(-1) != y).double().mean()
    expected = over_pairs(log_probs, differ).mean() / wrong
    assert metrics.diversity(log_probs, y).value == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.checklist("R16")
def test_diversity_in_closed_form():
    """Two samples, each wrong on a tenth of the examples of its own: everything they may be."""
    y = torch.zeros(100, dtype=torch.long)
    labels = torch.zeros(2, 100, dtype=torch.long)
    labels[0, :10], labels[1, 10:20] = 1, 1
    scores = torch.nn.functional.one_hot(labels, 2).double()
    assert metrics.disagreement(scores) == pytest.approx((0.2, 0.04))
    assert metrics.diversity(scores, y).value == pytest.approx(2.0)
    same = scores[:1].repeat(2, 1, 1)
    assert metrics.diversity(same, y) == (0.0, 0.0)


@pytest.mark.checklist("R16")
def test_error_of_a_diversity_tells_how_it_varies_between_test_sets():
    """The ratio's error is good to first order: to a few parts in the number of examples."""

    def draw():
        y = torch.randint(3, (400,))
        scores = torch.randn(2, 400, 3, dtype=torch.float64)
        scores.scatter_add_(-1, y.expand(2, -1).unsqueeze(-1), torch.ones(2, 400, 1).double())
        return metrics.diversity(scores, y)

    found = [draw() for _ in range(1000)]
    values = torch.tensor([estimate.value for estimate in found], dtype=torch.float64)
    claimed = torch.tensor([estimate.error**2 for estimate in found], dtype=torch.float64)
    spread = (values - values.mean()).square()
    assert_mean(spread - claimed, 0.0, "variance of a diversity")


def test_kl_diversity_is_that_of_torch_distributions(samples):
    log_probs, _ = samples

    def divergence(a, b):
        return kl_divergence(Categorical(logits=a), Categorical(logits=b))

    expected = over_pairs(log_probs, divergence, itertools.permutations).numpy()
    found = metrics.kl_diversity(log_probs)
    assert found.value == pytest.approx(expected.mean(), rel=1e-9)
    assert found.error == pytest.approx(expected.std() / math.sqrt(EXAMPLES), rel=1e-9)


def test_equal_samples_have_no_diversity(samples):
    same = samples[0][:1].repeat(4, 1, 1)
    assert metrics.disagreement(same) == (0.0, 0.0)
    assert metrics.kl_diversity(same) == pytest.approx((0.0, 0.0), abs=1e-12)


@pytest.mark.parametrize("metric", [metrics.disagreement, metrics.kl_diversity])
@pytest.mark.parametrize("shape", [(4, 3), (1, 4, 3)])
def test_one_sample_cannot_differ(metric, shape):
    with pytest.raises(ValueError, match="with at least 2 samples"):
        metric(torch.zeros(shape))


def test_a_diversity_needs_errors():
    with pytest.raises(ValueError, match="no sample is ever wrong"):
        metrics.diversity(torch.eye(3).expand(2, 3, 3), torch.arange(3))


DRAWS = 2000


def assert_spread(estimate, variance):
    """The spread of normal draws has a relative error of √(2 / draws) in its square."""
    deviation = (estimate.error**2 / variance - 1) / math.sqrt(2 / (DRAWS - 1))
    assert abs(deviation) < threshold(1)


def test_bootstrapped_averages_have_the_spread_of_their_closed_form():
    values = torch.randn(EXAMPLES, dtype=torch.float64)
    found = metrics.bootstrap(torch.mean, values, draws=DRAWS)
    assert found.value == pytest.approx(float(values.mean()))
    assert_spread(found, float(values.var(correction=0)) / EXAMPLES)


def test_strata_keep_their_sizes():
    """The average of two groups then varies only as far as the groups do by themselves."""
    group = (torch.arange(EXAMPLES) < EXAMPLES // 4).long()
    values = torch.randn(EXAMPLES, dtype=torch.float64) + 10 * group
    sizes = [EXAMPLES // 4, EXAMPLES - EXAMPLES // 4]
    within = [float(values[group == g].var(correction=0)) for g in (1, 0)]
    exact = sum(n * v for n, v in zip(sizes, within, strict=True)) / EXAMPLES**2
    assert_spread(metrics.bootstrap(torch.mean, values, strata=group, draws=DRAWS), exact)
    free = metrics.bootstrap(torch.mean, values, draws=100)
    assert free.error**2 > 5 * exact


def test_bootstraps_repeat_and_refuse_bad_input():
    values = torch.randn(20)
    assert metrics.bootstrap(torch.mean, values) == metrics.bootstrap(torch.mean, values)
    assert metrics.bootstrap(torch.mean, values) != metrics.bootstrap(torch.mean, values, seed=1)
    with pytest.raises(ValueError, match="all equally long"):
        metrics.bootstrap(torch.mean, values, values[1:])
    with pytest.raises(ValueError, match="at least 2"):
        metrics.bootstrap(torch.mean, values, draws=1)


@pytest.mark.parametrize("sharpness", [0.3, 2.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_calibration_error_is_that_of_torchmetrics(dtype, sharpness):
    """Also where many are certain, which torchmetrics counts as a separate bin."""
    probs = (sharpness * torch.randn(500, 7, dtype=dtype)).softmax(-1)
    y = torch.where(torch.rand(500) < 0.7, probs.argmax(-1), torch.randint(7, (500,)))
    expected = float(multiclass_calibration_error(probs, y, 7, n_bins=15))
    assert metrics.calibration_error(probs, y).value == pytest.approx(expected, abs=1e-6)
    confidence, labels = probs.max(-1)
    bins = metrics.calibration_bins(confidence, labels == y)
    assert [len(part) for part in bins[:3]] == [15, 15, 15]
    assert float(bins.examples.sum()) == 500
    average = float((bins.confidence * bins.examples).sum() / 500)
    assert average == pytest.approx(float(confidence.double().mean()))


def test_confidences_on_an_edge_belong_to_the_bin_above_and_one_to_the_last():
    bins = metrics.calibration_bins(torch.tensor([0.0, 0.5, 1.0]), torch.ones(3), bins=4)
    assert bins.examples.tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("levels", [3, 10_000])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (metrics.auroc, binary_auroc),
        (metrics.average_precision, binary_average_precision),
    ],
    ids=["auroc", "average precision"],
)
def test_areas_under_curves_are_those_of_torchmetrics(ours, theirs, levels):
    """With ties and without."""
    scores = torch.randint(levels, (300,)).double() / levels
    y = torch.rand(300) < 0.2 + 0.5 * scores
    assert ours(scores, y).value == pytest.approx(float(theirs(scores, y.long())), abs=1e-6)
    assert ours(100 * scores - 50, y.long()) == ours(scores, y)
    with pytest.raises(ValueError, match="all examples are of one kind"):
        ours(scores, torch.ones(300))
    with pytest.raises(ValueError, match="give one of each for every example"):
        ours(scores, y[1:])
