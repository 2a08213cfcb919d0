"""The metrics in the papers' tables on toys with closed forms, and by oracles."""

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    log_loss,
    roc_auc_score,
)

import leanbayes as lb
from leanbayes import metrics
from leanbayes.lab.data import Examples
from leanbayes.lab.evaluation import evaluate
from leanbayes.prediction.predict import Prediction
from leanbayes.testing import assert_mean, threshold
from research.corruptions import CORRUPTIONS, SEVERITIES
from research.corruptions.means import corrupted_means, mean_corruption_error

EXAMPLES, CLASSES = 400, 5


def prediction_of(probs):
    """One sample whose class probabilities are these."""
    return Prediction(probs.log().unsqueeze(0))


def constant_forecast(p, right, wrong):
    """Probability ``p`` for class 0 and the rest for class 1, so often right and so often wrong."""
    probs = torch.tensor([p, 1 - p], dtype=torch.float64).expand(right + wrong, 2)
    return probs, torch.tensor([0] * right + [1] * wrong)


def random_samples(samples=7):
    outputs = 2 * torch.randn(samples, EXAMPLES, CLASSES, dtype=torch.float64)
    return Prediction(outputs), torch.randint(CLASSES, (EXAMPLES,))


def softmax(outputs):
    """By numpy, and not by the code under test."""
    values = np.exp(outputs - outputs.max(-1, keepdims=True))
    return values / values.sum(-1, keepdims=True)


@pytest.mark.checklist("KT15")
@pytest.mark.parametrize(("p", "right", "wrong"), [(0.8, 30, 10), (0.6, 90, 10), (0.99, 5, 15)])
def test_a_constant_forecast_in_closed_form(p, right, wrong):
    probs, y = constant_forecast(p, right, wrong)
    share, count = right / (right + wrong), right + wrong
    values = prediction_of(probs).metrics(y)
    assert values["accuracy"].value == pytest.approx(share)
    assert values["accuracy"].error == pytest.approx(math.sqrt(share * (1 - share) / count))
    nll = -share * math.log(p) - (1 - share) * math.log(1 - p)
    assert values["nll"].value == pytest.approx(nll)
    spread = abs(math.log(p) - math.log(1 - p)) * math.sqrt(share * (1 - share) / count)
    assert values["nll"].error == pytest.approx(spread)
    brier = share * 2 * (1 - p) ** 2 + (1 - share) * 2 * p**2
    assert values["brier"].value == pytest.approx(brier)
    assert values["ece"].value == pytest.approx(abs(p - share), abs=1e-6)  # all in one bin


@pytest.mark.checklist("KT15")
def test_both_conventions_of_the_brier_score():
    """With its constant it is 0 when perfect; as printed, without it, it is −1."""
    probs = torch.rand(EXAMPLES, CLASSES, dtype=torch.float64).softmax(-1)
    y = torch.randint(CLASSES, (EXAMPLES,))
    truth = np.eye(CLASSES)[y.numpy()]
    full = ((probs.numpy() - truth) ** 2).sum(1)
    printed = (probs.numpy() ** 2).sum(1) - 2 * probs.numpy()[np.arange(EXAMPLES), y.numpy()]
    ours = metrics.brier(probs, y)
    assert ours.value == pytest.approx(full.mean())
    assert ours.value - 1 == pytest.approx(printed.mean())
    assert ours.error == pytest.approx(full.std() / math.sqrt(EXAMPLES))
    assert metrics.brier(torch.eye(3), torch.arange(3)).value == 0.0
    assert metrics.brier(torch.eye(2), torch.tensor([1, 0])).value == 2.0


@pytest.mark.checklist("KT15")
def test_two_classes_give_twice_the_binary_score():
    on = torch.rand(EXAMPLES, dtype=torch.float64)
    y = torch.randint(2, (EXAMPLES,))
    ours = metrics.brier(torch.stack([1 - on, on], -1), y).value
    assert ours == pytest.approx(2 * brier_score_loss(y.numpy(), on.numpy()))


@pytest.mark.checklist("KT15")
def test_calibration_error_over_fifteen_bins_by_hand():
    prediction, y = random_samples()
    probs = softmax(prediction.samples.numpy()).mean(0)
    confidence, right = probs.max(1), probs.argmax(1) == y.numpy()
    bins = np.minimum((confidence * 15).astype(int), 14)
    expected = sum(
        (bins == b).mean() * abs(confidence[bins == b].mean() - right[bins == b].mean())
        for b in np.unique(bins)
    )
    assert prediction.metrics(y)["ece"].value == pytest.approx(expected, rel=1e-4)
    assert len(np.unique(bins)) > 5


@pytest.mark.checklist("KT15")
@pytest.mark.parametrize("share", [0.5, 0.9759])
def test_standard_errors_are_those_of_repeated_test_sets(share):
    """The spread of the accuracy over test sets is what one test set says it is."""
    right = torch.rand(4000, EXAMPLES, dtype=torch.float64) < share
    accuracy = right.double().mean(1)
    claimed = torch.tensor([metrics.average(row.double()).error for row in right[:200]])
    exact = math.sqrt(share * (1 - share) / EXAMPLES)
    assert_mean((accuracy - share).square(), exact**2, "squared error of an accuracy")
    biased = claimed.double().square() * EXAMPLES / (EXAMPLES - 1)  # a variance with its mean taken
    assert_mean(biased, exact**2, "squared standard error")


@pytest.mark.checklist("R18")
def test_nll_and_accuracy_against_scikit_learn():
    prediction, y = random_samples()
    probs = softmax(prediction.samples.numpy()).mean(0)
    values = prediction.metrics(y)
    assert values["nll"].value == pytest.approx(log_loss(y.numpy(), probs, labels=range(CLASSES)))
    assert values["accuracy"].value == accuracy_score(y.numpy(), probs.argmax(1))
    mixture = metrics.nll(prediction.log_probs, y)
    assert mixture.value == pytest.approx(values["nll"].value)


@pytest.fixture
def rare():
    """Samples of the logit of a rare outcome, as in the records of the rank-1 paper, and the
    outcomes.
    """
    y = (torch.rand(EXAMPLES) < 0.1).double()
    y[:2] = torch.tensor([0.0, 1.0])
    return torch.randn(7, EXAMPLES, dtype=torch.float64) + y, y


def spread_by_draws(estimate, exact):
    """How far 100 bootstrap draws are from an exact error, in standard errors of its square."""
    return abs(estimate.error**2 / exact**2 - 1) / math.sqrt(2 / 99)


@pytest.mark.checklist("R18")
def test_areas_under_curves_against_scikit_learn(rare):
    logits, y = rare
    values = Prediction(logits, lb.likelihoods.Bernoulli()).metrics(y)
    by_hand = (1 / (1 + np.exp(-logits.numpy()))).mean(0)
    for name, area in (("auc_pr", average_precision_score), ("auroc", roc_auc_score)):
        assert values[name].value == pytest.approx(area(y.numpy(), by_hand), rel=1e-5)
        assert values[name].error > 0


@pytest.mark.checklist("R18")
def test_calibration_of_an_outcome_is_that_of_its_two_classes(rare):
    logits, y = rare
    both = torch.stack([torch.zeros_like(logits), logits], -1)
    expected = Prediction(both).metrics(y.long())["ece"]
    assert tuple(Prediction(logits, lb.likelihoods.Bernoulli()).metrics(y)["ece"]) == pytest.approx(
        expected
    )


@pytest.mark.checklist("R18")
def test_areas_of_a_column_are_those_of_its_entries(rare):
    logits, y = rare
    flat = Prediction(logits, lb.likelihoods.Bernoulli()).metrics(y)
    column = Prediction(logits.unsqueeze(-1), lb.likelihoods.Bernoulli()).metrics(y.unsqueeze(-1))
    assert {n: tuple(v) for n, v in column.items()} == {n: tuple(v) for n, v in flat.items()}


@pytest.mark.checklist("R18")
def test_the_error_of_an_area_is_that_of_its_ranks(rare):
    """Of the share of pairs in order: variances of each side's shares (DeLong and others, 1988)."""
    logits, y = rare
    scores = (1 / (1 + np.exp(-logits.numpy()))).mean(0)
    ordered = scores[y.numpy() == 1][:, None] > scores[y.numpy() == 0]
    sides = [ordered.mean(axis).var(ddof=1) / ordered.shape[1 - axis] for axis in (0, 1)]
    found = Prediction(logits, lb.likelihoods.Bernoulli()).metrics(y)["auroc"]
    assert spread_by_draws(found, math.sqrt(sum(sides))) < threshold(1)


def test_there_is_no_area_of_many_outcomes_or_of_one_kind():
    pixels = torch.randn(3, 20, 4), torch.randint(2, (20, 4)).double()
    always = torch.randn(3, 20), torch.ones(20)
    for (logits, y), also in ((pixels, set()), (always, {"ece"})):
        assert (
            set(Prediction(logits, lb.likelihoods.Bernoulli()).metrics(y))
            == {"nll", "accuracy"} | also
        )


@pytest.mark.checklist("KT15")
def test_the_error_of_a_calibration_error_far_from_zero():
    """All in one bin, it is a distance of two averages, and varies as an accuracy does."""
    probs, y = constant_forecast(0.99, 100, 300)
    found = prediction_of(probs).metrics(y)["ece"]
    assert spread_by_draws(found, math.sqrt(0.25 * 0.75 / 400)) < threshold(1)


@pytest.mark.checklist("R16")
def test_several_samples_have_a_diversity_and_one_has_none():
    prediction, y = random_samples()
    labels = prediction.samples.argmax(-1).numpy()
    pairs = [(a != b).mean() for a, b in itertools.combinations(labels, 2)]
    wrong = (labels != y.numpy()).mean()
    values = prediction.metrics(y)
    assert values["disagreement"].value == pytest.approx(np.mean(pairs))
    assert values["diversity"].value == pytest.approx(np.mean(pairs) / wrong)
    assert values["kl_diversity"].value > 0
    alone = Prediction(prediction.samples[:1]).metrics(y)
    assert not {"disagreement", "diversity", "kl_diversity"} & set(alone)


@pytest.mark.checklist("R16")
def test_samples_that_are_never_wrong_have_no_relative_diversity():
    y = torch.arange(4)
    values = Prediction(20 * torch.eye(4).expand(3, 4, 4)).metrics(y)
    assert values["disagreement"].value == 0
    assert "diversity" not in values


@pytest.mark.checklist("R18")
def test_means_are_over_what_every_result_has():
    some, all_right = {"nll": {"value": 1.0}, "diversity": {"value": 0.5}}, {"nll": {"value": 0.0}}
    assert corrupted_means({("blur", 1): some, ("blur", 2): all_right}) == {"nll": 0.5}


@pytest.mark.checklist("R18")
def test_corrupted_metrics_are_means_over_kinds_and_severities():
    results, table = {}, np.empty((len(CORRUPTIONS), len(SEVERITIES)))
    for (i, kind), (j, severity) in itertools.product(
        enumerate(CORRUPTIONS), enumerate(SEVERITIES)
    ):
        prediction, y = random_samples(3)
        values = prediction.metrics(y)
        results[kind, severity] = {name: value._asdict() for name, value in values.items()}
        probs = softmax(prediction.samples.numpy()).mean(0)
        table[i, j] = log_loss(y.numpy(), probs, labels=range(CLASSES))
    means = corrupted_means(results)
    assert means["nll"] == pytest.approx(table.mean(1).mean())
    assert set(means) >= {"nll", "accuracy", "ece"}
    del results["blur", 3]
    with pytest.raises(ValueError, match="every corruption needs the same severities"):
        corrupted_means(results)


@pytest.mark.checklist("R18")
def test_corruption_error_weighs_by_a_reference():
    """Sums over severities first, then ratios, then their mean; 1 for the reference itself."""
    rng = np.random.default_rng(torch.initial_seed())
    ours, theirs = rng.uniform(0.1, 0.9, (2, len(CORRUPTIONS), len(SEVERITIES)))
    keys = list(itertools.product(CORRUPTIONS, SEVERITIES))
    errors, reference = (dict(zip(keys, table.ravel(), strict=True)) for table in (ours, theirs))
    expected = (ours.sum(1) / theirs.sum(1)).mean()
    assert mean_corruption_error(errors, reference) == pytest.approx(expected)
    assert mean_corruption_error(reference, reference) == pytest.approx(1.0)


def test_the_elbo_is_the_average_nll_and_the_kl():
    """With cross entropies of each sample by torch; the NLL of all samples is never higher."""
    x, y = torch.randn(30, 4), torch.randint(3, (30,))
    model = lb.convert(torch.nn.Linear(4, 3), lb.MeanField(0.5), lb.priors.Normal(1.0))
    found = evaluate(
        model, Examples(x, y), lb.likelihoods.Categorical(), samples=9, seed=3, data_size=30
    )
    samples = lb.predict(model, x, samples=9, seed=3).samples
    each = [float(torch.nn.functional.cross_entropy(sample, y)) for sample in samples]
    kl = float(lb.kl(model).detach()) / 30
    assert found["average_nll"]["value"] == pytest.approx(np.mean(each), rel=1e-5)
    assert found["negative_elbo"]["value"] == pytest.approx(np.mean(each) + kl, rel=1e-5)
    assert found["nll"]["value"] < found["average_nll"]["value"]
