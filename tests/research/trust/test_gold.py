"""Gold posterior: distances of predictions, every method on a small budget, and the chains."""

import math

import numpy as np
import pytest
import torch

from research.trust.gold.compare import (
    Predicted,
    agreement,
    compared,
    gold_of,
    halves,
    total_variation,
)
from research.trust.gold.methods import METHODS, Training, predictions
from research.trust.gold.nuts import Chains, sample
from research.trust.gold.problems import PROBLEMS, Problem, curve, logistic

QUICK = Training(steps=3, samples=4)


def regression(noise=0.5):
    x = torch.zeros(4, 2)
    return Problem("numbers", x, x[:, :1], x, torch.zeros(4, 1), noise=noise)


def test_equal_predictions_have_no_distance():
    outputs = torch.randn(50, 4, dtype=torch.float64)
    found = compared(regression(), Predicted(outputs=outputs), Predicted(outputs=outputs))
    assert found["total_variation"] == found["mean_distance"] == 0
    assert found["std_ratio"] == 1
    assert found["nll"] == found["gold_nll"]


def test_total_variation_of_two_normals_is_that_of_the_formula():
    near, far = torch.zeros(1, 4).double(), torch.full((1, 4), 0.6).double()
    found = compared(regression(), Predicted(outputs=near), Predicted(outputs=far))
    exact = math.erf(0.6 / 0.5 / 2 / math.sqrt(2))
    assert found["total_variation"] == pytest.approx(exact, abs=1e-4)
    assert found["mean_distance"] == pytest.approx(0.6)


def test_a_ratio_of_deviations_is_that_of_the_function():
    outputs = torch.randn(50, 4, dtype=torch.float64)
    found = compared(regression(), Predicted(outputs=outputs / 2), Predicted(outputs=outputs))
    assert found["std_ratio"] == pytest.approx(0.5)


def test_agreement_and_total_variation_of_classes():
    a = torch.tensor([[0.7, 0.3], [0.2, 0.8]])
    b = torch.tensor([[0.4, 0.6], [0.1, 0.9]])
    assert agreement(a, b) == 0.5
    assert total_variation(a, b) == pytest.approx(0.2)


def test_two_halves_of_chains_are_compared():
    probs = np.array([[[0.5, 0.5]], [[0.7, 0.3]], [[0.6, 0.4]], [[0.6, 0.4]]])
    arrays = {"probs": probs, "variance": np.full((1, 2), 0.01)}
    problem = Problem("classes", *[torch.zeros(1, 1)] * 3, torch.zeros(1), outputs=2)
    first, second = halves(problem, arrays)
    assert total_variation(first.probs, second.probs) == pytest.approx(0.0)
    assert torch.allclose(gold_of(problem, arrays).probs, torch.tensor([[0.6, 0.4]]).double())


def test_problems_are_the_same_every_time():
    first, second = curve(), curve()
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.y_test, second.y_test)
    assert len(PROBLEMS) == 5


@pytest.mark.parametrize("method", METHODS)
def test_every_method_predicts(method):
    problem = logistic()
    found = predictions(METHODS[method], problem, QUICK, seed=0)
    assert found.probs.shape == (len(problem.x_test), 2)
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(len(problem.x_test)).double())
    assert (found.variance >= 0).all()


def test_chains_sample_a_conjugate_posterior():
    pytest.importorskip("numpyro")
    x = torch.linspace(-1, 1, 20)[:, None]
    problem = Problem("numbers", x, 0.7 * x, x, 0.7 * x, noise=0.3)
    arrays, facts = sample(problem, Chains(chains=2, warmup=100, draws=400))
    precision = 1 + float(x.square().sum()) / 0.3**2
    exact = float((x * 0.7 * x).sum()) / 0.3**2 / precision
    slope = arrays["outputs"][:, -1]
    assert slope.mean() == pytest.approx(exact, abs=5 / math.sqrt(precision * len(slope)))
    assert slope.std() == pytest.approx(precision**-0.5, rel=0.3)
    assert facts["rhat_max"] < 1.1
