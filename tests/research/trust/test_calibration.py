"""Simulation-based calibration: an exact family passes, others and broken ones are found."""

import pytest
import torch

import leanbayes as lb
from leanbayes.posteriors import POSTERIORS
from research.trust.calibration import FAMILIES, MODELS, WITHOUT, Settings, ranks, verdict

SMALL = Settings(simulations=40, examples=10)
LINEAR = MODELS["linear regression"]


def spread(family, **options):
    return verdict(ranks(FAMILIES[family], LINEAR, SMALL, **options), SMALL.draws)


def test_the_matrix_normal_is_calibrated_on_the_conjugate_model():
    assert spread("matrix normal")["uniform"]


def test_a_posterior_that_is_too_narrow_is_found():
    broken = spread("matrix normal", widened=0.4)
    assert not broken["uniform"]
    assert broken["spread"] > 1.1


def test_mean_field_is_too_narrow_for_correlated_weights():
    found = ranks(FAMILIES["mean field"], LINEAR, Settings(simulations=100, examples=10))
    exact = ranks(FAMILIES["matrix normal"], LINEAR, Settings(simulations=100, examples=10))
    narrow, right = (verdict(r[:, :-1], SMALL.draws)["spread"] for r in (found, exact))
    assert narrow > 1.1 > right


def test_uniform_ranks_pass_and_shifted_ones_do_not():
    found = torch.randint(100, (2000, 3), generator=torch.Generator().manual_seed(0))
    assert verdict(found, 99)["uniform"]
    assert verdict(found, 99)["spread"] == pytest.approx(1, abs=0.05)
    assert not verdict((found + 20).clamp_max(99), 99)["uniform"]


def test_every_posterior_is_calibrated_or_says_why_not():
    made = {type(family).__name__ for family in FAMILIES.values()}
    known = {n for n, kind in POSTERIORS.items() if issubclass(kind, lb.posteriors.Posterior)}
    assert known == made | WITHOUT.keys()
    assert not made & WITHOUT.keys()
