"""Every metric against brute force or another library; its error against what resampling gives."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from sklearn.metrics import root_mean_squared_error
from torch import distributions

import leanbayes as lb
from leanbayes import metrics
from leanbayes.likelihoods import mixtures
from leanbayes.testing import assert_mean, threshold


def classes(examples=300, count=4):
    logits = 2 * torch.randn(examples, count, dtype=torch.float64)
    y = distributions.Categorical(logits=0.5 * logits).sample()
    return logits.softmax(-1), y


def assert_error(metric, draw, repeats=400):
    """The squared error that a metric claims is the variance of its value over fresh test sets."""
    found = [metric(*draw()) for _ in range(repeats)]
    values = torch.tensor([score.value for score in found], dtype=torch.float64)
    claimed = torch.tensor([score.error for score in found], dtype=torch.float64)
    ratio = float(claimed.square().mean().sqrt() / values.std())
    reach = threshold(1) / math.sqrt(2 * repeats)
    assert ratio == pytest.approx(1, abs=0.12 + reach), f"errors are {ratio:.2f} of what they are"


@pytest.mark.parametrize("bins", [1, 7, 15, 1000])
def test_adaptive_calibration_error_is_that_of_equal_groups(bins):
    probs, y = classes()
    confidence, right = probs.max(-1).values.numpy(), (probs.argmax(-1) == y).numpy()
    order = np.argsort(confidence)
    groups = np.array_split(order, min(bins, len(order)))
    gaps = [abs(confidence[g].mean() - right[g].mean()) * len(g) for g in groups]
    found = metrics.adaptive_calibration_error(probs, y, bins)
    assert found.value == pytest.approx(sum(gaps) / len(order), rel=1e-9)


def test_equal_confidences_have_no_order():
    probs = torch.tensor([[0.75, 0.25]]).expand(40, 2)
    y = (torch.arange(40) % 4 == 0).long()
    for order in (y, y.flip(0), y.sort().values):
        assert metrics.adaptive_calibration_error(probs, order).value == pytest.approx(0, abs=1e-7)


def test_a_calibration_error_needs_a_bin():
    with pytest.raises(ValueError, match="bins is 0; it must be at least 1"):
        metrics.calibration_error(*classes(), bins=0)


def test_intervals_of_bins_are_wilson_s():
    probs, y = classes()
    confidence, labels = probs.max(-1)
    bins = metrics.calibration_bins(confidence, labels == y, 5)
    low, high = bins.interval
    for k, n, a, b in zip(bins.accuracy * bins.examples, bins.examples, low, high, strict=True):
        if n:
            theirs = stats.binomtest(round(float(k)), int(n)).proportion_ci(0.95, "wilson")
            assert (float(a), float(b)) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
        else:
            assert (float(a), float(b)) == (0, 1)


@pytest.mark.parametrize("levels", [4, 10**6])
def test_aurc_is_the_mean_over_orders_of_equal_examples(levels):
    uncertainty = torch.randint(levels, (7,))
    loss = torch.rand(7, dtype=torch.float64)
    areas = []
    for order in itertools.permutations(range(7)):
        shuffled = sorted(order, key=lambda i: int(uncertainty[i]))
        kept = np.cumsum([float(loss[i]) for i in shuffled]) / np.arange(1, 8)
        areas.append(kept.mean())
    assert metrics.aurc(uncertainty, loss).value == pytest.approx(np.mean(areas), rel=1e-9)
    curve = metrics.rejection_curve(uncertainty, loss)
    assert float(curve.kept[0]) == pytest.approx(float(loss.mean()))
    assert curve.rejected.tolist() == pytest.approx([i / 7 for i in range(7)])


def test_a_rejection_needs_one_value_an_example():
    with pytest.raises(ValueError, match="give one of each for every example"):
        metrics.rejection_curve(torch.zeros(3), torch.zeros(2))


def test_rmse_is_that_of_scikit_learn():
    mean, y = torch.randn(50, 3).double(), torch.randn(50, 3).double()
    square = root_mean_squared_error(y.flatten(), mean.flatten())
    assert metrics.rmse(mean, y).value == pytest.approx(square)
    assert metrics.rmse(y, y) == (0.0, 0.0)
    with pytest.raises(ValueError, match=r"predictions have shape .50, 3. and targets .50,."):
        metrics.rmse(mean, y[:, 0])


@pytest.mark.parametrize("draws", [1, 2, 13])
def test_crps_of_draws_is_the_mean_over_pairs(draws):
    x, y = torch.randn(draws, 6, 2).double(), torch.randn(6, 2).double()
    pairs = [(a - b).abs() for a, b in itertools.permutations(x, 2)]
    spread = torch.stack(pairs).mean(0) if pairs else torch.zeros_like(y)
    expected = (x - y).abs().mean(0) - spread / 2
    found = metrics.crps(x, y)
    assert found.value == pytest.approx(float(expected.mean()))
    assert found.error == pytest.approx(metrics.average(expected.mean(1)).error)


def test_crps_of_a_normal_mixture_is_the_integral_of_its_distribution_function():
    means, y = torch.randn(5, 4).double(), torch.randn(4).double()
    scales = torch.rand(5, 4).double() + 0.2

    def of_example(i):
        def cdf(z):
            return float(stats.norm.cdf(z, means[:, i], scales[:, i]).mean())

        below = integrate.quad(lambda z: cdf(z) ** 2, -20, float(y[i]), limit=200)[0]
        return below + integrate.quad(lambda z: (1 - cdf(z)) ** 2, float(y[i]), 20, limit=200)[0]

    expected = sum(of_example(i) for i in range(4)) / 4
    found = mixtures.mixture_crps(distributions.Normal(means, scales), y)
    assert found.value == pytest.approx(expected, rel=1e-6)


def test_crps_of_one_normal_is_the_textbook_formula():
    z = 0.7
    formula = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi)
    p = lb.Prediction(torch.zeros(1, 1, dtype=torch.float64), lb.likelihoods.Gaussian(1.0))
    assert p.metrics(torch.tensor([z]))["crps"].value == pytest.approx(formula, abs=1e-7)


def test_crps_without_a_closed_form_is_unbiased_and_repeatable():
    law = distributions.StudentT(5.0, torch.zeros(3, 4000), torch.ones(()))
    y = torch.full((4000,), 0.5)
    state = torch.get_rng_state()
    found = mixtures.mixture_crps(law, y)
    assert found == mixtures.mixture_crps(law, y)
    assert torch.equal(torch.get_rng_state(), state)
    below = integrate.quad(lambda z: stats.t.cdf(z, 5) ** 2, -100, 0.5)[0]
    exact = below + integrate.quad(lambda z: stats.t.sf(z, 5) ** 2, 0.5, 100)[0]
    assert abs(found.value - exact) < threshold(1) * found.error


def test_coverage_and_width_of_intervals():
    low, y = torch.zeros(4, 2), torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 3.0], [1.0, 1.0]])
    high = torch.ones(4, 2)
    assert metrics.interval_coverage(low, high, y).value == pytest.approx(5 / 8)
    assert metrics.interval_width(low, high) == (1.0, 0.0)
    with pytest.raises(ValueError, match="give the same, for at least one example"):
        metrics.interval_coverage(low[:0], high[:0], y[:0])
    with pytest.raises(ValueError, match="no targets to cover"):
        metrics.coverage_curve(torch.zeros(0))


def test_delong_s_error_is_that_of_all_pairs():
    """With unequal numbers, so that neither term stands for the other."""
    scores, positive = torch.randn(90).round(decimals=1).double(), torch.arange(90) < 30
    scores += positive
    above = scores[positive][:, None] - scores[~positive]
    pairs = (above > 0).double() + (above == 0).double() / 2
    by_positive, by_negative = pairs.mean(1), pairs.mean(0)
    square = by_positive.sub(pairs.mean()).square().mean() / 30
    square += by_negative.sub(pairs.mean()).square().mean() / 60
    found = metrics.auroc(scores, positive)
    assert found.value == pytest.approx(float(pairs.mean()), rel=1e-12)
    assert found.error == pytest.approx(float(square.sqrt()), rel=1e-12)


@pytest.mark.parametrize("metric", [metrics.auroc, metrics.average_precision, metrics.aurc])
def test_a_ranking_by_nan_is_nan(metric):
    scores = torch.tensor([0.1, math.nan, 0.3, math.nan])
    found = metric(scores, torch.tensor([False, True, False, True]))
    assert math.isnan(found.value)
    assert math.isnan(found.error)


def test_delong_s_error_is_that_of_fresh_examples():
    def draw():
        scores = torch.randn(120).double()
        positive = torch.arange(120) < 40
        return (scores + positive).round(decimals=1), positive

    assert_error(metrics.auroc, draw)


def test_the_error_of_rmse_and_crps_is_that_of_fresh_examples():
    def draw():
        y = torch.randn(80).double() * (1 + torch.rand(80))
        return torch.zeros(80).double(), y

    assert_error(metrics.rmse, draw)
    assert_error(lambda mean, y: metrics.crps(torch.randn(20, 80).double(), y), draw)


def test_bootstrapped_errors_are_those_of_fresh_examples():
    def aurc(probs, y):
        return metrics.aurc(-probs.amax(-1), probs.argmax(-1) != y)

    assert_error(aurc, lambda: classes(100), repeats=60)


def test_a_score_is_a_number():
    assert float(metrics.Score(0.5, 0.1)) == 0.5
    assert metrics.bootstrap(lambda v: metrics.average(v), torch.ones(3)) == (1.0, 0.0)


def test_crps_is_proper():
    """The law that targets are drawn from scores better than others, on average."""
    y = torch.randn(3000).double()
    zeros = torch.zeros(1, 3000).double()
    right, wide, moved = (
        lb.Prediction(zeros + shift, lb.likelihoods.Gaussian(scale)).metrics(y)["crps"].value
        for shift, scale in ((0.0, 1.0), (0.0, 1.6), (0.5, 1.0))
    )
    assert right < min(wide, moved)
    assert_mean((y - 0).abs(), math.sqrt(2 / math.pi), "the absolute error")
