"""The picture of the KL over α, from three priors."""

import math
from itertools import pairwise

import pytest

from research.papers.variance.kl_over_alpha import draw_kls, kls_over_alpha

LOG_ALPHAS = [-8.0, -2.0, 0.0, 2.0, 8.0]


@pytest.mark.checklist("VN26")
def test_the_kl_from_every_prior_falls_to_nothing():
    lines = kls_over_alpha(LOG_ALPHAS)
    assert set(lines) == {
        *("log-uniform", "log-uniform, the paper's approximation", "ARD", "Student-t")
    }
    for line in lines.values():
        assert all(before > after for before, after in pairwise(line))
        assert line[0] > 3.9
        assert 0 < line[-1] < 3e-4


@pytest.mark.checklist("VN26")
def test_lines_are_closed_forms_and_an_integral():
    lines = kls_over_alpha(LOG_ALPHAS)
    closed = [0.5 * math.log1p(math.exp(-log_alpha)) for log_alpha in LOG_ALPHAS]
    assert lines["ARD"] == pytest.approx(closed, rel=1e-9)
    assert lines["Student-t"] == pytest.approx(lines["log-uniform"], abs=1e-6)
    approximated = lines["log-uniform, the paper's approximation"]
    assert approximated == pytest.approx(lines["log-uniform"], abs=0.0095)
    assert approximated != lines["log-uniform"]


def test_it_is_a_picture():
    assert draw_kls().startswith(b"\x89PNG")
