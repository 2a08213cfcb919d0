"""Four accuracies an epoch, and a layer that turns into a variance layer [variance, figure 3]."""

import pytest
import torch

import leanbayes as lb
from leanbayes.lab.from_recipe import build_model, load_data
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from research.papers.variance.ablation import zero_means
from research.papers.variance.phases import Phases, four_accuracies

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

COLUMNS = {f"accuracy/{name}" for name in ("mean", "sample", "ensemble", "zero_mean")}


def recipe(**changes):
    values = {
        "name": "digits-phases",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [100]}},
        "posterior": {"kind": "Dropout", "alpha": "layer", "log_alpha": -5.0},
        "prior": "LogUniform",
        "include": ["dense1"],
        "optimizer": {"lr": 3e-3, "multipliers": {"scales": 100}},
        "training": {"epochs": 25, "batch_size": 100},
        "measurements": [{"kind": "phases", "examples": 360, "samples": 10}],
        "evaluation": {"samples": 2},
    }
    return check_recipe({**values, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phases") / "run"
    train(recipe(), folder, progress=False)
    return Run(folder)


@pytest.mark.checklist("VN13")
def test_noise_takes_over_what_means_knew(run):
    """log α rises, samples scatter, and the network learns to do without its means."""
    curves = run.columns
    log_alpha, without_means = curves["log_alpha/model.dense1"], curves["accuracy/zero_mean"]
    assert log_alpha[0] < 0 < 1.5 < log_alpha[-1]
    assert without_means[0] < 0.2 < 0.35 < without_means[-1]
    assert curves["accuracy/sample"][-1] < curves["accuracy/ensemble"][-1] - 0.05
    assert curves["accuracy/ensemble"][-1] > 0.8


def test_measuring_does_not_change_the_training(run, tmp_path):
    short = {"training": {"epochs": 2, "batch_size": 100}}
    measured = train(recipe(**short), tmp_path / "measured", progress=False)
    plain = train(recipe(**short, measurements=[]), tmp_path / "plain", progress=False)
    assert measured["metrics"] == plain["metrics"]
    assert not COLUMNS & Run(tmp_path / "plain").columns.keys()


def test_a_resumed_run_has_the_same_accuracies(tmp_path, monkeypatch):
    spec = recipe(training={"epochs": 3, "batch_size": 100})
    train(spec, tmp_path / "whole", progress=False)
    stopped = RuntimeError("stopped")
    original = Run.write_metrics

    def stop(self, rows):
        original(self, rows)
        if len(rows) == 2:
            raise stopped

    monkeypatch.setattr(Run, "write_metrics", stop)
    with pytest.raises(RuntimeError, match="stopped"):
        train(spec, tmp_path / "run", progress=False)
    monkeypatch.undo()
    train(spec, tmp_path / "run", resume=True, progress=False)
    whole, resumed = (Run(tmp_path / name).columns for name in ("whole", "run"))
    for name in COLUMNS:
        assert resumed[name] == whole[name]


def test_accuracies_are_those_of_the_four_networks():
    """A layer with known means and much noise: by hand, from the same draws."""
    spec = recipe()
    model, test = build_model(spec), load_data(spec).test
    found = four_accuracies(model, test, Phases(examples=50, samples=4), seed=3)
    x, y = test.x[:50], test.y[:50]
    plain = lb.deterministic(model)
    assert found["accuracy/mean"] == float((plain(x).argmax(1) == y).double().mean())
    drawn = lb.predict(model, x, samples=4, seed=3)
    each = (drawn.samples.argmax(-1) == y).double().mean()
    assert found["accuracy/sample"] == pytest.approx(float(each))
    assert found["accuracy/ensemble"] == float((drawn.labels == y).double().mean())
    zero = lb.predict(zero_means(model), x, samples=4, seed=3)
    assert found["accuracy/zero_mean"] == float((zero.labels == y).double().mean())


def test_the_global_generator_is_left_alone():
    spec = recipe()
    model, test = build_model(spec), load_data(spec).test
    before = torch.get_rng_state()
    four_accuracies(model, test, Phases(examples=20, samples=2), seed=0)
    assert torch.equal(before, torch.get_rng_state())


def test_phases_of_numbers_are_refused_in_a_sentence(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("a,b,y\n" + "".join(f"{i},{i * i % 7},{i / 10}\n" for i in range(60)))
    spec = recipe(
        data={"name": str(table)},
        architecture={"name": "mlp", "options": {"inputs": 2, "hidden": [8], "outputs": 1}},
        likelihood={"kind": "gaussian"},
    )
    with pytest.raises(
        ValueError, match="'phases' records accuracies, and the targets are not cla"
    ):
        train(spec, tmp_path / "run", progress=False)


def test_phases_of_a_plain_network_are_refused_before_it_is_trained(tmp_path):
    spec = recipe(posterior=None, prior=None)
    with pytest.raises(ValueError, match="'phases' needs random weights, and the network has none"):
        train(spec, tmp_path / "run", progress=False)
