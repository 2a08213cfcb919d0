"""Tables of curves, digits of scores and refused shapes, which planted errors had passed."""

import pytest
import torch

import leanbayes as lb
from leanbayes.metrics import Score, adaptive_calibration_error, calibration_error, rejection_curve


def test_a_tiny_error_shows_six_digits():
    assert repr(Score(1.0, 1e-9)) == "1.000000 ± 0.000000"
    assert repr(Score(0.51234567, 3e-5)) == "0.512346 ± 0.000030"


def test_a_table_of_rejections_has_a_row_per_share():
    curve = rejection_curve(torch.tensor([0.1, 0.9, 0.5]), torch.tensor([1.0, 0.0, 0.5]))
    table = curve.table()
    assert list(table.head) == ["rejected", "average of the others"]
    assert ["0%", "0.5"] in [list(row) for row in table.rows]


def test_a_table_of_coverage_names_targets_and_levels():
    law = lb.likelihoods.Gaussian(1.0)
    p = lb.Prediction(torch.zeros(1, 20, 1), law)
    table = str(p.calibration(torch.linspace(-2, 2, 20)[:, None]).table())
    assert "coverage of 20 targets" in table
    assert "interval" in table
    assert "90%" in table


@pytest.mark.parametrize("error", [calibration_error, adaptive_calibration_error])
def test_probabilities_of_another_number_of_examples_are_refused(error):
    with pytest.raises(ValueError, match="shape"):
        error(torch.full((4, 2), 0.5), torch.zeros(3, dtype=torch.long))
