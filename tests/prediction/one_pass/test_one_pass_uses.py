"""Where one pass may stand in for samples: calibration, diagnoses, validation, scikit-learn."""

import numpy as np
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.likelihoods import Categorical
from leanbayes.sklearn import BayesClassifier, BayesRegressor
from leanbayes.training.fit import _Settings
from leanbayes.training.goodness import goodness_of_fit

ROWS, BATCH = 600, 100


class Counted(nn.Module):
    """A network that counts how often it runs."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
        self.passes = 0

    def forward(self, x):
        self.passes += 1
        return self.net(x)


@pytest.fixture
def classes():
    """A network that is too sure of itself, and labels that its own probabilities have drawn."""
    torch.manual_seed(0)
    model = lb.convert(Counted(), lb.KTied(2, 0.05), lb.priors.Normal(1.0))
    with torch.no_grad():
        model.net[2].posterior.loc.mul_(8.0)
    x = torch.randn(ROWS, 4)
    probs = lb.predict(model, x, samples=100, seed=0, likelihood=Categorical(2.0)).probs
    model.passes = 0
    return model, (x, torch.multinomial(probs, 1).squeeze(1))


def test_calibration_needs_one_pass_and_finds_the_temperature_of_many_samples(classes):
    model, data = classes
    found = lb.calibrate(model, data, method="moments", batch_size=BATCH)
    assert model.passes == ROWS // BATCH
    expected = lb.calibrate(model, data, samples=300, batch_size=BATCH)
    assert found.temperature == pytest.approx(expected.temperature, rel=0.05)


def test_goodness_of_fit_is_near_that_of_samples(classes):
    model, data = classes
    one, many = (
        goodness_of_fit(model, data, Categorical(), method=m) for m in ("moments", "samples")
    )
    assert one.nll == pytest.approx(many.nll, rel=0.03)
    assert one.accuracy == pytest.approx(many.accuracy, abs=0.01)


def test_a_diagnosis_by_one_pass_says_the_same(classes):
    model, data = classes
    falls = [2.0 * 0.9**step for step in range(20)]
    history = {"nll": falls, "kl": falls, "weight": [1.0] * 20}
    one, many = (lb.diagnose(model, history, data, method=m) for m in ("moments", "samples"))
    assert [found[:30] for found in map(str, one.findings)] == [
        found[:30] for found in map(str, many.findings)
    ]


def test_validation_by_one_pass_is_repeatable_and_near_that_of_samples(classes):
    _, data = classes
    scores = []
    for method in ("moments", "moments", "samples"):
        torch.manual_seed(1)
        model = lb.convert(Counted(), lb.KTied(2, 0.05), lb.priors.Normal(1.0))
        options = {"epochs": 2, "validation_method": method, "validation_samples": 64}
        history = lb.fit(model, data, data, **options)
        scores.append([row["validation_nll"] for row in history])
    assert scores[0] == scores[1]
    assert scores[0] == pytest.approx(scores[2], rel=0.02)


def test_checkpoints_from_before_one_pass_belong_to_samples():
    now = _Settings(3, 0.1, 1.0, 0.5, None, 10, 0)
    before = {name: value for name, value in vars(now).items() if name != "validation_method"}
    assert _Settings(**before) == now


@pytest.mark.parametrize("kind", [BayesClassifier, BayesRegressor])
def test_estimators_answer_by_one_pass(kind):
    rng = np.random.RandomState(0)
    X = rng.randn(200, 3)
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.randn(200)
    y = y if kind is BayesRegressor else (y > 0).astype(int)
    model = kind(random_state=0, samples=256).fit(X, y)
    ask = model.predict if kind is BayesRegressor else model.predict_proba
    many = ask(X)
    model.set_params(method="moments")
    assert np.abs(ask(X) - many).mean() < 0.02
    np.testing.assert_array_equal(ask(X), ask(X))
    np.testing.assert_allclose(ask(X[3:5]), ask(X)[3:5], atol=1e-12)


def test_estimators_refuse_other_methods():
    with pytest.raises(ValueError, match="moments"):
        BayesRegressor(method="once").fit(np.eye(3), np.arange(3.0))
