"""The generated cohort: its risk is exact, calibrated, and the best there is."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from leanbayes import testing
from leanbayes.lab import data
from research.papers.rank1.health import generate_cohort
from research.papers.rank1.health.bags import RecordShape
from research.papers.rank1.health.cohort import STAY, Hospital, _dying, _first_day


@pytest.fixture
def seed(request):
    return request.config.getoption("--seed")


@pytest.fixture(scope="module")
def cohort(request):
    seed = request.config.getoption("--seed")
    return generate_cohort(train=5, validation=5, test=20_000, seed=seed)["test"]


def all_paths(hospital, record):
    """The probability of dying, as a sum over all paths of conditions."""
    days = [day for day in record[1:] if day.any()]
    age, male = record[None, 0, 1] / 100, record[None, 0, 0] / 100
    total = dying = 0.0
    for path in itertools.product(range(len(STAY)), repeat=len(days)):
        weight = np.exp(_first_day(age))[0, path[0]]
        for before, after in itertools.pairwise(path):
            weight *= STAY[before, after]
        for condition, day in zip(path, days, strict=True):
            for code in day[: hospital.shape.codes][day[: hospital.shape.codes] > 0]:
                weight *= np.exp(hospital.codes[condition, code - 2])
            for value in day[hospital.shape.codes :][day[hospital.shape.codes :] > 0]:
                weight *= np.exp(hospital.values[condition].reshape(-1)[value - 1])
        total += weight
        dying += weight * _dying(age, male)[0, path[-1]]
    return dying / total


@pytest.mark.checklist("R19")
def test_the_risk_is_a_sum_over_all_paths(seed):
    rng = np.random.RandomState(seed)
    hospital = Hospital.draw(12, RecordShape(4, 3, 2), rng)
    found = hospital.admit(20, rng)
    for record, risk in zip(found.entries.numpy(), found.risk.tolist(), strict=True):
        assert risk == pytest.approx(all_paths(hospital, record), rel=1e-10)
    assert {int(days) for days in found.entries[:, 1:].any(-1).sum(1)} == {1, 2, 3, 4}


@pytest.mark.checklist("R19")
def test_the_risk_is_calibrated(cohort):
    """In every tenth of patients by risk as many die as it says."""
    order = cohort.risk.argsort()
    tenths = list(order.chunk(10))
    limit = testing.threshold(len(tenths))
    for tenth in tenths:
        risk = cohort.risk[tenth]
        error = (risk * (1 - risk)).sum().sqrt()
        assert abs(float((cohort.died[tenth] - risk).sum() / error)) < limit


@pytest.mark.checklist("R19")
def test_what_is_no_function_of_the_risk_scores_worse(cohort):
    best = cohort.scores()
    odds = torch.logit(cohort.risk)
    other = type(cohort)(cohort.entries, cohort.died, torch.sigmoid(odds + torch.randn_like(odds)))
    worse = other.scores()
    assert worse["nll"] > best["nll"]
    assert worse["auroc"] < best["auroc"]
    assert worse["auc_pr"] < best["auc_pr"]


@pytest.mark.checklist("R19")
def test_the_cohort_looks_like_a_hospital(cohort):
    """Few die, stays differ in length, and some codes are much more frequent than others."""
    assert 0.05 < float(cohort.died.double().mean()) < 0.2
    assert 0.8 < cohort.scores()["auroc"] < 0.95
    lengths = cohort.entries[:, 1:].any(-1).sum(1)
    assert set(lengths.tolist()) == set(range(1, 11))
    codes = cohort.entries[:, 1:, :6].flatten()
    counts = codes[codes > 0].bincount(minlength=200)[2:]
    assert counts.max() > 10 * counts.min() > 0
    ages = cohort.entries[:, 0, 1]
    assert stats.spearmanr(ages, cohort.risk).statistic > 0.1


def test_a_seed_gives_the_same_patients_and_more_patients_change_no_hospital():
    small = {"validation": 3, "test": 4}
    first, again, other = (generate_cohort(train=6, seed=seed, **small) for seed in (1, 1, 2))
    assert all(first[part].entries.equal(again[part].entries) for part in first)
    assert not first["test"].entries.equal(other["test"].entries)
    larger = generate_cohort(train=9, seed=1, **small)
    assert larger["test"].risk.equal(first["test"].risk)
    assert not first["train"].entries[:3].equal(first["validation"].entries)


def test_the_data_set_says_what_the_true_risk_scores():
    options = {"train": 30, "validation": 20, "test": 300, "seed": 3}
    dataset = data.load_dataset("ehr-cohort", **options)
    part = generate_cohort(**options)["test"]
    assert dataset.test.stored.equal(part.entries)
    assert dataset.test.y.equal(part.died)
    assert f"nll {part.scores()['nll']:.4f}, auroc" in dataset.preprocessing
    assert dataset.input_shape == (11, 14)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"train": 0}, "train is 0; it must be at least 1"),
        ({"days": 0}, "days is 0"),
        ({"codes": 0}, "codes is 0"),
        ({"vocabulary": 2}, "vocabulary is 2"),
        ({"seed": 2**40}, r"a cohort takes one below 2\*\*32"),
        ({"patients": 3}, "option of ehr-cohort 'patients' is unknown"),
    ],
)
def test_wrong_options_are_told_in_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        data.load_dataset("ehr-cohort", **options)
