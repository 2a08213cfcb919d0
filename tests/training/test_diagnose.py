"""Diagnoses of real trainings on the digits, each healthy or ill on purpose."""

import csv
import math
import re

import pytest
import torch
from digits import images
from sklearn.datasets import load_diabetes
from torch import nn

import leanbayes as lb

PRIOR = lb.priors.Normal(0.2)
K_TIED = lb.KTied(2, 0.05)

pytestmark = pytest.mark.usefixtures("_seed")


def digits(rows=1000):
    x, y = images()
    return x[:rows], y[:rows], 10, lb.likelihoods.Categorical()


def numbers():
    x, y = load_diabetes(return_X_y=True)
    x, y = torch.tensor(21 * x).float(), torch.tensor((y - y.mean()) / y.std()).float()
    return x, y[:, None], 1, lb.likelihoods.Gaussian(0.5, "learned")


def trained(
    posterior=K_TIED, *, prior=PRIOR, lr=0.01, steps=600, weight=1.0, data=digits, falls=True
):
    """A network after Adam, with a rate that falls to zero or not, and its history."""
    x, y, outputs, likelihood = data()
    net = nn.Sequential(nn.Linear(x.shape[1], 20), nn.ReLU(), nn.Linear(20, outputs))
    model = lb.convert(net, posterior, prior)
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, 0 if falls else lr)
    history = []
    for _ in range(steps):
        chosen = torch.randint(len(x), (100,))
        nll = likelihood.nll(model(x[chosen]), y[chosen])
        parts = lb.elbo(nll, lb.kl(model), data_size=len(x), weight=weight)
        optimizer.zero_grad()
        parts.loss.backward()
        optimizer.step()
        scheduler.step()
        history.append({name: float(torch.as_tensor(v)) for name, v in detached(parts).items()})
    return model, history


def detached(parts):
    values = parts._asdict()
    return {n: v.detach() if isinstance(v, torch.Tensor) else v for n, v in values.items()}


HEALTHY = {
    "k-tied": {},
    "matrix normal": {"posterior": lb.posteriors.MatrixNormal()},
    "a cold posterior": {"weight": 0.1},
    "numbers": {"data": numbers},
}
ILL = {
    "KL weight 10": ({"weight": 10.0}, {"underfits"}),
    "KL weight 3": ({"weight": 3.0, "steps": 400}, {"heavy KL"}),
    "fifty examples": ({"data": lambda: digits(50)}, {"underfits"}),
    "rate 1e-6": ({"lr": 1e-6}, {"not moved"}),
    "two hundred steps": ({"lr": 1e-3, "steps": 200, "falls": False}, {"not converged"}),
    "tiny scales": (
        {"posterior": lb.MeanField(1e-6), "weight": 0.1, "lr": 3e-3},
        {"collapsed", "stuck"},
    ),
    "a far prior": (
        {"posterior": lb.MeanField(1e-3), "prior": lb.priors.Normal(1.0), "lr": 1e-3},
        {"stuck"},
    ),
    "no KL": ({"weight": 0.0}, {"light KL"}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_trainings_raise_no_alarm(name):
    found = lb.diagnose(*trained(**HEALTHY[name]))
    assert found.is_healthy, str(found)
    assert "No problem in what was judged" in str(found)


@pytest.mark.parametrize("name", ILL)
def test_every_illness_is_named(name):
    options, expected = ILL[name]
    found = lb.diagnose(*trained(**options))
    named = {finding.name for finding in found.findings}
    assert named == expected, str(found)
    for finding in found.findings:
        assert finding.says.endswith(".")
        assert f"- {finding.says} {finding.advice}" in str(found)


CURVE = [2.0 * 0.9**step for step in range(200)]


@pytest.fixture
def model():
    return lb.convert(nn.Linear(4, 3), K_TIED, PRIOR)


def test_histories_of_every_form_say_the_same(model, tmp_path):
    rows = [{"nll": v, "kl": v / 2, "weight": 0.5} for v in CURVE]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    kinds = [
        lb.training.Elbo(torch.tensor(1.5 * v), torch.tensor(v), torch.tensor(v / 2), 0.5)
        for v in CURVE
    ]
    lightning = {"train/nll": columns["nll"], "train/kl": columns["kl"]}
    lightning["kl_weight"] = columns["weight"]
    said = {str(lb.diagnose(model, h)) for h in (rows, columns, kinds, iter(rows), lightning)}
    path = tmp_path / "metrics.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ["step", *lightning])
        table.writeheader()
        for step, values in enumerate(zip(*lightning.values(), strict=True)):
            table.writerow({"step": step, **dict(zip(lightning, values, strict=True))})
            table.writerow({"step": step})  # as Lightning's, with blanks
    said |= {str(lb.diagnose(model, h)) for h in (path, str(path))}
    assert len(said) == 1
    begin, end = (sum(part) / 10 for part in (CURVE[:10], CURVE[-10:]))
    words = f"from {begin:.2g} to {end:.2g} and the KL from {begin / 2:.2g} to {end / 2:.2g} nats"
    assert words in said.pop()


def test_a_loss_alone_tells_whether_it_fell(model):
    assert lb.diagnose(model, {"loss": CURVE}).is_healthy
    straight = [3.0 - 0.01 * step for step in range(100)]
    (found,) = lb.diagnose(model, {"loss": straight}).findings
    assert found.name == "not converged"
    (found,) = lb.diagnose(model, {"loss": [1.0] * 20}).findings
    assert found.name == "not moved"
    (found,) = lb.diagnose(model, {"loss": [*CURVE[:50], *(3.0 for _ in range(30))]}).findings
    assert found.name == "rising"
    assert "ended at 3" in found.says


def test_the_loss_curve_of_an_estimator():
    from leanbayes.sklearn import BayesRegressor

    x, y = load_diabetes(return_X_y=True)
    fitted = BayesRegressor(random_state=0, epochs=40, hidden=(10,)).fit(x, y)
    found = lb.diagnose(fitted.networks_[0], {"loss": fitted.loss_curve_})
    assert found.summary.startswith("In 40 entries the loss went from ")


def test_validation_that_rises_is_overfitting(model):
    history = {"nll": CURVE, "kl": CURVE, "validation/nll": [0.5] * 50 + [0.9] * 50}
    (found,) = lb.diagnose(model, history).findings
    assert found.name == "overfits"
    history["validation/nll"] = [1.0, 0.8, 0.7, 0.6, 0.5, 0.5, 0.52, 0.5]
    assert lb.diagnose(model, history).is_healthy


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_the_only_finding(model, bad):
    history = {"nll": [*CURVE, bad], "kl": [1.0] * 201}
    (found,) = lb.diagnose(model, history).findings
    assert found.name == "not finite"
    assert "from entry 200 on" in found.says


def test_posteriors_without_scales_of_single_weights_are_judged_by_their_curves():
    model = lb.convert(nn.Linear(4, 3), lb.Rank1(2), lb.priors.Normal(0.1, loc=1.0))
    assert lb.diagnose(model, {"nll": CURVE, "kl": CURVE}).is_healthy
    pure = lb.convert(nn.Linear(4, 3), lb.posteriors.ZeroMean(), lb.priors.LogUniform())
    assert lb.diagnose(pure, {"nll": CURVE, "kl": CURVE}).is_healthy


def test_what_is_no_history_is_refused(model):
    with pytest.raises(ValueError, match="history has 3 entries; give at least 8"):
        lb.diagnose(model, {"loss": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match="history has nll; give nll and kl, or loss"):
        lb.diagnose(model, {"nll": CURVE})
    with pytest.raises(ValueError, match=r"unequal numbers of entries: {'nll': 200, 'kl': 199}"):
        lb.diagnose(model, {"nll": CURVE, "kl": CURVE[1:]})
    with pytest.raises(TypeError, match="an entry of the history is a float"):
        lb.diagnose(model, CURVE)
    with pytest.raises(ValueError, match=r"the model is plain; call lb.convert first"):
        lb.diagnose(nn.Linear(4, 3), {"loss": CURVE})


def noisy_digits(seed=0):
    """Digits of which two thirds have random labels: nobody can be right about those."""
    x, y = images()
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(y), generator=generator) < 2 / 3
    return x, torch.where(wrong, torch.randint(10, (len(y),), generator=generator), y)


def fitted(x, y, **options):
    model = lb.convert(nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10)))
    history = lb.fit(model, (x, y), epochs=10, lr=3e-3, progress=False, **options)
    return model, history


def test_a_network_that_is_mostly_wrong_is_never_called_faultless():
    x, y = noisy_digits()
    model, history = fitted(x[:1000], y[:1000])
    found = lb.diagnose(model, history, (x[:1000], y[:1000]), (x[1000:], y[1000:]))
    accuracy = lb.predict(model, x[1000:], samples=20, seed=0).metrics(y[1000:])["accuracy"].value
    assert accuracy < 0.5
    assert "explains little" in {finding.name for finding in found.findings}
    shown = re.search(r"Validation data: accuracy ([\d.]+)%", repr(found))
    assert float(shown[1]) == pytest.approx(100 * accuracy, abs=4)  # by other samples
    assert "nothing wrong" not in repr(found)
    without = repr(lb.diagnose(model, history))
    assert "Not judged: the fit. Give data=(x, y)." in without
    assert "nothing wrong" not in without


def test_a_good_fit_is_compared_with_its_mean_network_its_start_and_its_prior():
    x, y = images()
    model, history = fitted(x[:1000], y[:1000])
    found = lb.diagnose(model, history, (x[:1000], y[:1000]), (x[1000:], y[1000:]))
    assert not {"explains little", "noise costs"} & {finding.name for finding in found.findings}
    assert "without noise" in found.summary
    assert "times their start and" in found.summary
    assert any("whether this network could do better" in each for each in found.unjudged)


def test_noise_that_harms_is_seen_beside_the_mean_network():
    x, y = images()
    model, history = fitted(x[:1000], y[:1000])
    for layer in model:
        if isinstance(layer, lb.layers.RandomMap):
            u = layer.posterior.value("u")
            layer.posterior.assign(u=30 * u)
    found = lb.diagnose(model, history, (x[:1000], y[:1000]))
    assert "noise costs" in {finding.name for finding in found.findings}
    ratio = float(found.summary.split("deviations are ")[1].split(" times")[0])
    assert ratio > 15


def test_training_rows_learned_by_heart_are_overfitting():
    x, y = noisy_digits()
    model, history = fitted(x[:100], y[:100], kl_weight=0.0, batch_size=10)
    lb.fit(model, (x[:100], y[:100]), epochs=200, lr=3e-3, kl_weight=0.0, progress=False)
    found = lb.diagnose(model, history, (x[:100], y[:100]), (x[1000:], y[1000:]))
    assert "overfits" in {finding.name for finding in found.findings}


def test_numbers_are_judged_by_their_variance():
    x = torch.randn(300, 3)
    pure_noise = torch.randn(300, 1)
    model = lb.convert(nn.Linear(3, 1))
    law = lb.likelihoods.Gaussian(0.5, "learned")
    history = lb.fit(model, (x, pure_noise), epochs=10, likelihood=law, progress=False)
    found = lb.diagnose(model, history, (x, pure_noise))
    (finding,) = (each for each in found.findings if each.name == "explains little")
    assert "variance of these targets" in finding.says


def test_a_short_training_is_judged_by_its_data():
    x, y = images()
    model = lb.convert(nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10)))
    history = lb.fit(model, (x[:500], y[:500]), epochs=1, lr=1e-5, progress=False)
    found = lb.diagnose(model, history, (x[:500], y[:500]))
    assert "explains little" in {finding.name for finding in found.findings}
    assert any("course of the training" in each for each in found.unjudged)
    with pytest.raises(ValueError, match="history has 1 entries; give at least 8"):
        lb.diagnose(model, history)
