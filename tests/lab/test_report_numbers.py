"""Reports of runs that predict numbers, or yes and no."""

import math

import numpy
import pytest
import torch
from pages import Page
from torch.distributions import Normal
from torchmetrics.functional.classification import multiclass_calibration_error

import leanbayes as lb
from leanbayes.lab.data import Dataset, Examples, Scaling, load_dataset
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.report import study, write_report
from leanbayes.lab.report.classes import calibration, certain_images
from leanbayes.lab.report.html import page
from leanbayes.lab.report.numbers import metric_name, target_units
from leanbayes.lab.report.regression import regression
from leanbayes.lab.report.study import Study
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from leanbayes.testing import threshold

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


def parsed(html, tmp_path):
    path = tmp_path / "part.html"
    path.write_text(page("part", html), encoding="utf-8")
    return Page(path)


def studied(prediction, y, *, target_scaling=None, model=None):
    """The study of predictions for these targets."""
    examples = Examples(torch.zeros(len(y), 2), y)
    facts = {"license": "", "source": "", "preprocessing": "", "target_scaling": target_scaling}
    task = (
        "regression" if isinstance(prediction.likelihood, lb.likelihoods.Gaussian) else "sequence"
    )
    dataset = Dataset("made", task, examples, examples, **facts)
    return Study(model, dataset, prediction, {}, ())


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "line.csv"
    generator = numpy.random.default_rng(0)
    x = generator.normal(size=(200, 2))
    y = 50 + 10 * (x[:, 0] + 0.3 * generator.normal(size=200))
    numpy.savetxt(path, numpy.column_stack([x, y]), delimiter=",", header="a,b,y", comments="")
    return path


def trained(table, folder, noise):
    outputs = 2 if noise == "predicted" else 1
    values = {
        "name": f"{noise}-noise",
        "data": {"name": str(table)},
        "architecture": {
            "name": "mlp",
            "options": {"inputs": 2, "hidden": [4], "outputs": outputs},
        },
        "posterior": "MeanField",
        "prior": {"kind": "Normal", "scale": 1.0},
        "likelihood": {"kind": "gaussian", "scale": 0.5, "noise": noise},
        "training": {"epochs": 2, "batch_size": 50},
        "evaluation": {"samples": 3},
    }
    train(check_recipe(values), folder, progress=False)
    return folder


@pytest.mark.parametrize("noise", ["learned", "predicted"])
def test_a_run_that_predicts_numbers_shows_its_intervals(table, tmp_path, noise):
    run = trained(table, tmp_path / "run", noise)
    shown = Page(write_report([run], tmp_path / "report.html"))
    assert shown.notices == []
    assert "Predictive intervals" in shown.headings
    assert not {"Calibration", "Most and least certain images"} & set(shown.headings)
    (caption,) = [text for text in shown.captions() if text.startswith("Error over")]
    squared = Run(run).metrics["squared_error"].value
    found = study.study(Run(run)).dataset
    root = math.sqrt(squared) * float(found.target_scaling.scale)
    assert f"it is {root:.4f} over all" in caption
    assert "in the units of the raw targets" in caption
    assert "squared error (standardized targets)" in shown.text
    assert "NLL (standardized targets)" in shown.text


def test_learned_noise_is_the_trained_one(table, tmp_path):
    run = trained(table, tmp_path / "run", "learned")
    likelihood = study.study(Run(run)).test.likelihood
    assert float(likelihood.log_scale) != pytest.approx(math.log(0.5), abs=1e-6)
    assert not likelihood.log_scale.requires_grad


def test_coverage_of_one_normal_is_that_of_its_interval():
    mean, y = torch.randn(40, 1), torch.randn(40, 1)
    nominal, observed, _ = lb.Prediction(mean[None], lb.likelihoods.Gaussian(0.7)).calibration(y)
    for level, share in zip(nominal.tolist(), observed.tolist(), strict=True):
        reach = 0.7 * Normal(0.0, 1.0).icdf(torch.tensor((1 + level) / 2))
        assert share == pytest.approx(float(((y - mean).abs() <= reach).double().mean()))


def test_coverage_of_a_mixture_is_that_of_its_quantiles():
    samples, y = torch.randn(7, 60, 1, dtype=torch.float64), torch.randn(60, 1) * 1.5
    prediction = lb.Prediction(samples, lb.likelihoods.Gaussian(0.4))
    for level, share in zip(*prediction.calibration(y)[:2], strict=True):
        low, high = prediction.quantiles([(1 - float(level)) / 2, (1 + float(level)) / 2])
        assert float(share) == pytest.approx(float(((low <= y) & (y <= high)).double().mean()))


def test_a_calibrated_model_covers_what_it_promises():
    mean = torch.randn(5000)
    y = mean + 0.3 * torch.randn(5000)
    nominal, observed, _ = lb.Prediction(mean[None], lb.likelihoods.Gaussian(0.3)).calibration(y)
    error = (nominal * (1 - nominal) / 5000).sqrt()
    limit = threshold(len(nominal))
    assert bool(((observed - nominal).abs() < limit * error).all())
    _, narrow, _ = lb.Prediction(mean[None], lb.likelihoods.Gaussian(0.25)).calibration(y)
    assert bool(((narrow - nominal).abs() > limit * error).any())


def test_intervals_are_in_the_units_of_the_raw_targets(monkeypatch, tmp_path):
    shown = {}
    names = ("truth", "mean", "low", "high")
    record = lambda *values: shown.update(zip(names, values, strict=True)) or b""  # noqa: E731
    monkeypatch.setattr("leanbayes.lab.plots.intervals", record)
    samples, y = torch.zeros(1, 30, 1), torch.randn(30, 1)
    prediction = lb.Prediction(samples, lb.likelihoods.Gaussian(2.0))
    regression(None, studied(prediction, y, target_scaling=Scaling(100.0, 10.0)))
    torch.testing.assert_close(shown["truth"], 100 + 10 * y.double().flatten())
    torch.testing.assert_close(shown["mean"], torch.full((30,), 100.0, dtype=torch.float64))
    reach = 20 * 1.6448536269514722  # the 95 % quantile of a unit normal
    torch.testing.assert_close(shown["high"], torch.full_like(shown["high"], 100 + reach))
    torch.testing.assert_close(shown["low"], torch.full_like(shown["low"], 100 - reach))


@pytest.mark.parametrize("shape", [(80,), (80, 1)], ids=str)
def test_yes_and_no_are_two_classes(shape, tmp_path):
    logits = 2 * torch.randn(4, *shape)
    y = (torch.rand(shape) < 0.5).float()
    found = studied(lb.Prediction(logits, lb.likelihoods.Bernoulli()), y)
    shown = parsed(calibration(None, found), tmp_path)
    on = logits.sigmoid().mean(0).flatten()
    both = torch.stack([1 - on, on], -1)
    error = float(multiclass_calibration_error(both, y.flatten().long(), 2, n_bins=15))
    right = float(((on > 0.5) == y.flatten().bool()).double().mean())
    assert f"expected calibration error {error:.4f}" in shown.text
    assert f"Accuracy is {right:.4f} on all examples" in shown.text
    assert any("Entropy of correct and incorrect" in caption for caption in shown.captions())
    assert certain_images(None, found) is None
    assert regression(None, found) is None


def test_many_yes_and_no_at_once_are_left_out_in_one_sentence(monkeypatch):
    pixels = Examples((torch.rand(5, 1, 2, 2) < 0.5).float())
    dataset = Dataset("dots", "density", pixels, pixels, "", "", "")
    recipe = check_recipe(
        {
            "name": "dots",
            "data": {"name": "dots"},
            "architecture": {"name": "mlp"},
            "training": {"epochs": 1},
        }
    )
    model = torch.nn.Identity()
    monkeypatch.setattr(Run, "load", lambda run: (model, lb.likelihoods.Bernoulli()))
    monkeypatch.setattr(study, "load_data", lambda recipe, **options: dataset)
    found = study.study(Run("run", recipe))
    assert found.test is None
    assert found.model is model
    (problem,) = found.problems
    assert "many yes or no at once" in problem


def test_numbers_have_no_classes():
    prediction = lb.Prediction(torch.zeros(2, 3), lb.likelihoods.Gaussian())
    assert calibration(None, studied(prediction, torch.zeros(3))) is None
    several = lb.Prediction(torch.zeros(2, 3, 4), lb.likelihoods.Bernoulli())
    assert calibration(None, studied(several, torch.zeros(3, 4))) is None


@pytest.mark.parametrize(
    ("options", "units"),
    [({}, "standardized"), ({"target_scaling": "raw"}, "raw")],
    ids=["standardized", "raw"],
)
@pytest.mark.tried(
    "Runs",
    what="a report of a regression, whose scores are standardized and whose figures are raw",
    holds="each number says its units",
)
def test_scores_of_numbers_say_their_units(table, options, units):
    dataset = load_dataset(str(table), **options)
    assert target_units(dataset) == units
    assert metric_name("squared_error", units) == f"squared error ({units} targets)"
    assert metric_name("ece", units) == "ECE (15 bins)"
