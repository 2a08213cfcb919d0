"""How a prediction was drawn, and errors that are not taken for a reason."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.prediction.vectorized.samples import SharedNoise

PRIOR = lb.priors.Normal(1.0)
X = torch.randn(40, 3)


class Around(nn.Module):
    """A random layer, and a function of its outputs."""

    def __init__(self, act):
        super().__init__()
        self.layer, self.act = nn.Linear(3, 4), act

    def forward(self, x):
        return self.act(self.layer(x))


def random(act=torch.tanh, estimator=lb.estimators.auto):
    return lb.convert(Around(act), lb.KTied(2), PRIOR, estimator)


def hooked():
    model = random()
    model.register_forward_hook(lambda *given: None)
    return model


def twice():
    return lb.convert(nn.Sequential(*[nn.Linear(3, 3)] * 2), lb.KTied(2), PRIOR)


REASONS = {
    "coherent=True draws one function": (random, {"coherent": True}),
    "only one sample": (random, {"samples": 1}),
    "batch_size is less than 4": (random, {"batch_size": 2}),
    "forward hooks": (hooked, {}),
    "a layer is called more than once": (twice, {}),
    "a layer draws noise that all examples share": (
        lambda: random(estimator=lb.estimators.weights),
        {},
    ),
    "cumsum acts along the examples": (lambda: random(lambda h: h.cumsum(0)), {}),
    "erfcx is not known to keep examples apart": (lambda: random(torch.special.erfcx), {}),
    "numbers depend on the size of the batch": (lambda: random(lambda h: h * len(h)), {}),
    "dropout draws noise": (lambda: lb.mc_dropout(Around(nn.Dropout(0.5))), {}),
    "cannot run a batch of": (lambda: random(lambda h: h + torch.ones(40, 1)), {}),
    "writes noise into a tensor without it": (lambda: random(in_place), {}),
}


def in_place(h):
    return torch.zeros(len(h), 4).add_(h)


@pytest.mark.parametrize("reason", REASONS)
def test_a_prediction_says_why_it_was_drawn_in_a_loop(reason):
    make, options = REASONS[reason]
    p = lb.predict(make(), X, **{"samples": 3, **options})
    assert p.method == "looped"
    assert reason in p.reason
    assert f"(looped: {p.reason})" in repr(p)


def test_a_vectorized_prediction_has_no_reason():
    p = lb.predict(random(), X, samples=3)
    assert (p.method, p.reason) == ("vectorized", None)
    assert "from 3 samples (vectorized)" in repr(p)
    assert p[:2].method == "vectorized"
    (part, *_) = lb.predict_batches(random(), X, samples=3)
    assert part.method == "vectorized"
    assert lb.Prediction(p.samples).method is None


def test_one_batch_in_a_loop_is_said_of_the_whole():
    loader = [X[:8], X[8:10, :], X[:1]]
    p = lb.predict(random(lambda h: h - h.mean(0, keepdim=True)), loader, samples=3)
    assert p.method == "looped"


def test_an_error_of_the_model_is_its_own():
    def fails(h):
        raise ArithmeticError("the model is wrong")

    with pytest.raises(ArithmeticError, match="the model is wrong"):
        lb.predict(random(fails), X, samples=3)
    with pytest.raises(RuntimeError, match=r"size of tensor a \(40\) must match"):
        lb.predict(random(lambda h: h + torch.ones(41, 1)), X, samples=3)


@pytest.mark.parametrize("error", [RuntimeError, TypeError, ZeroDivisionError])
def test_an_error_of_the_vectorized_pass_does_not_mean_slow(error, monkeypatch):
    def broken(self, *args):
        raise error("a bug")

    monkeypatch.setattr(SharedNoise, "outputs", broken)
    with pytest.raises(error, match="a bug"):
        lb.predict(random(), X, samples=3)
