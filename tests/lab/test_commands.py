"""The laboratory's commands, from a recipe to a page, and what they say when something is wrong."""

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from leanbayes.lab.recipe_files import recipe_names, recipe_path
from leanbayes.lightning import BayesianModule
from leanbayes_cli import app

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

RECIPE = """
name: digits-small
data: {name: digits}
architecture: {name: mlp, options: {inputs: 64, hidden: [16]}}
posterior: {kind: KTied, rank: 2}
prior: {kind: Normal, scale: 0.3}
optimizer: {lr: 1e-2}
training: {epochs: 30, batch_size: 200}
evaluation: {samples: 5}
budgets: {cpu: {training.epochs: 3}}
"""


def run(*arguments):
    return CliRunner().invoke(app(), [str(a) for a in arguments], env={"COLUMNS": "120"})


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "digits.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(recipe, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "digits-small"
    result = run("train", recipe, "--out", out, "--set", "seed=3")
    assert result.exit_code == 0, result.output
    assert "accuracy" in result.output
    return out


def test_train_uses_the_cpu_budget_and_settings(folder):
    result = json.loads((folder / "result.json").read_text())
    assert result["epochs"] == 3
    assert result["seed"] == 3


def test_evaluate_prints_every_metric(folder):
    result = run("evaluate", folder, "--samples", 3)
    assert result.exit_code == 0, result.output
    for name in ("nll", "accuracy", "brier", "ece", "mutual_information"):
        assert name in result.output


def test_evaluate_on_corrupted_images_is_worse(folder):
    clean = run("evaluate", folder)
    noisy = run("evaluate", folder, "--corrupt", "gaussian-noise", "--severity", 5)
    assert noisy.exit_code == 0, noisy.output
    assert noisy.output != clean.output


def test_predict_writes_a_table(folder, tmp_path):
    inputs, output = tmp_path / "new.npy", tmp_path / "predictions.csv"
    np.save(inputs, np.zeros((4, 1, 8, 8), dtype=np.float32))
    result = run("predict", folder, "--input", inputs, "--output", output, "--samples", 3)
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(output.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 4
    assert float(rows[0]["entropy"]) > 0


def test_report(folder, tmp_path):
    page = tmp_path / "report.html"
    assert run("report", folder, "-o", page).exit_code == 0
    assert "digits-small" in page.read_text(encoding="utf-8")


def test_data_list_names_licences():
    result = run("data", "list")
    assert result.exit_code == 0
    assert "digits" in result.output


def test_recipes_are_listed_by_name():
    everything, some = run("recipes"), run("recipes", "k_tied/mnist-mlp-k")
    assert everything.exit_code == some.exit_code == 0
    assert all(name in everything.output for name in recipe_names())
    lines = some.output.splitlines()[2:]
    assert [line.split()[0] for line in lines] == recipe_names("k_tied/mnist-mlp-k")
    (line,) = [line for line in lines if line.startswith("k_tied/mnist-mlp-k2 ")]
    assert line.split()[1:] == ["mnist", "mlp", "KTied", "80", "of", "300", "epochs,", "4", "more"]


def test_a_recipe_is_shown_as_it_is():
    name = "k_tied/mnist-mlp-k2"
    assert run("recipes", name, "--show").output == recipe_path(name).read_text(encoding="utf-8")


def test_ctrl_c_says_how_to_go_on(recipe, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(BayesianModule, "training_step", interrupted)
    result = run("train", recipe, "--out", tmp_path / "run")
    assert result.exit_code == 130
    assert "stopped by Ctrl-C; go on with: leanbayes " in result.stderr
    assert result.stderr.endswith(" --resume\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("train", "nothing.yaml"), "nothing.yaml does not exist"),
        (("train", "k_tied/mnist-mlp-k22"), "did you mean 'k_tied/mnist-mlp-k2'?"),
        (("sweep", "mnist"), "recipe 'mnist' is unknown; leanbayes recipes lists them"),
        (("recipes", "ktied/mnist-mlp-k2"), "did you mean 'k_tied/mnist-mlp-k2'?"),
        (("train", "{recipe}", "--set", "optimizer.lrr=1"), "did you mean 'lr'?"),
        (("train", "{recipe}", "--set", "seed"), "is not of the form key=value"),
        (("train", "{recipe}", "--out", "{folder}"), "resume it with --resume"),
        (("evaluate", "no-such-run"), "holds no finished run"),
        (("data", "fetch", "mnst"), "did you mean 'mnist'?"),
        (("report", "no-such-run"), "no-such-run"),
    ],
)
def test_mistakes_get_one_sentence(arguments, sentence, recipe, folder):
    filled = [a.format(recipe=recipe, folder=folder) for a in arguments]
    result = run(*filled)
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit)
    said = str(result.exception) + result.output
    assert sentence in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "command", ["recipes", "train", "evaluate", "predict", "sweep", "report", "demo"]
)
def test_every_command_has_an_example(command):
    assert f"Example: leanbayes {command}" in run(command, "--help").output
