"""The laboratory's commands, from a recipe to a page, and what they say when something is wrong."""

import csv
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from leanbayes.lab.data import listing
from leanbayes.lab.data.sources import SOURCES
from leanbayes.lab.evaluation import compare_runs
from leanbayes.lab.recipe_names import RECIPES, recipe_names, recipe_path
from leanbayes.lab.runs import Run
from leanbayes.lightning import BayesianModule
from leanbayes.prediction.predict import predict
from leanbayes_cli import app
from research import extensions  # noqa: F401
from research.publishing.recipe_minutes import recipe_minutes

MINUTES = str(json.loads((RECIPES / "minutes.json").read_text())["k_tied/mnist-mlp-k2"])
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
    result = run("train", recipe, "--output", out, "--set", "seed=3")
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


def test_data_list_says_what_is_absent_and_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = run("data", "list")
    assert result.exit_code == 0
    places = {entry.name: entry.place for entry in listing()}
    assert places["digits"] == "comes with scikit-learn"
    assert places["cifar10"] == "not here; leanbayes data fetch cifar10"
    assert places["imagenet"].startswith("not here and not downloadable")
    assert result.output.splitlines()[-1].startswith("Next: leanbayes data fetch ")


def test_a_run_compared_with_itself_differs_by_nothing(folder, tmp_path):
    result = run("compare", folder, folder, "--samples", 3, "--json", tmp_path / "found.json")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found) == {"nll", "accuracy", "brier"}
    trained = run("evaluate", folder, "--samples", 3, "--json", tmp_path / "metrics.json")
    assert trained.exit_code == 0
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    for name, scores in found.items():
        assert scores["difference"] == {"value": 0.0, "error": 0.0}
        assert scores["first"]["value"] == pytest.approx(metrics[name]["value"], abs=1e-5)


def test_paired_differences_are_those_of_the_examples(recipe, folder, tmp_path):
    other = tmp_path / "other"
    assert run("train", recipe, "-o", other, "--set", "seed=4").exit_code == 0
    nlls = []
    for each in (folder, other):
        model, _ = Run(each).load()
        test = Run(each).dataset.test
        drawn = predict(model, test.x, samples=5, seed=Run(each).recipe.seed, batch_size=1000)
        nlls.append(-drawn.samples.log_softmax(-1).logsumexp(0) + math.log(5))
        nlls[-1] = nlls[-1].gather(-1, test.y[:, None])[:, 0].double()
    gap = nlls[1] - nlls[0]
    found = compare_runs(folder, other, samples=5)["nll"].difference
    assert found.value == pytest.approx(float(gap.mean()), abs=1e-5)
    assert found.error == pytest.approx(float(gap.std(correction=0)) / len(gap) ** 0.5, rel=1e-3)


def test_a_mistyped_name_is_refused_without_torch():
    code = (
        "import sys, leanbayes_cli\n"
        "sys.argv = ['leanbayes', 'train', 'k_tied/mnist-mlp-k22']\n"
        "try:\n    leanbayes_cli.main()\n"
        "except SystemExit as end:\n    print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "did you mean 'k_tied/mnist-mlp-k2'?" in done.stdout
    assert done.stdout.strip().endswith("False")


def test_minutes_are_those_of_the_archived_results():
    assert json.loads((RECIPES / "minutes.json").read_text()) == recipe_minutes()


def test_data_list_names_what_needs_a_checkout(monkeypatch):
    monkeypatch.setattr(SOURCES, "checkout_only", {"digits", "elsewhere"})
    line = run("data", "list").output.splitlines()[-2]
    assert line == "Not here: elsewhere. In a checkout: python -m research.lab data list"


def test_help_has_panels_in_the_order_of_a_project():
    panels = re.findall(r"─ ([A-Z]\w+) ─", run("--help").output)
    assert panels == ["Options", "Start", "Run", "Tune", "Library"]


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_shows_no_type_of_flags(option):
    shown = run("train", option).output
    assert "<bool>" not in shown
    assert "--output" in shown


def test_recipes_are_listed_by_name():
    everything, some = run("recipes"), run("recipes", "k_tied/mnist-mlp-k")
    assert everything.exit_code == some.exit_code == 0
    assert all(name in everything.output for name in recipe_names())
    *lines, _, following = some.output.splitlines()[2:]
    assert [line.split()[0] for line in lines] == recipe_names("k_tied/mnist-mlp-k")
    (line,) = [line for line in lines if line.startswith("k_tied/mnist-mlp-k2 ")]
    assert line.split()[1:] == [*["MLP", "on", "MNIST,", "k", "=", "2"], "80", "of", "300", MINUTES]
    assert following == "Next: leanbayes train k_tied/mnist-mlp-k1-decay"


def test_a_recipe_is_shown_as_it_is():
    name = "k_tied/mnist-mlp-k2"
    assert run("recipes", name, "--show").output == recipe_path(name).read_text(encoding="utf-8")


def test_ctrl_c_says_how_to_go_on(recipe, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(BayesianModule, "training_step", interrupted)
    result = run("train", recipe, "--output", tmp_path / "run")
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
        (("train", "{recipe}", "--output", "{folder}"), "resume it with --resume"),
        (("evaluate", "no-such-run"), "no-such-run is not a run folder (no recipe.yaml)"),
        (("compare", "{folder}", "no-such-run"), "no-such-run is not a run folder"),
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
    "command",
    ["recipes", "train", "evaluate", "predict", "sweep", "report", "demo", "selfcheck"],
)
def test_every_command_has_an_example(command):
    assert f"Example: leanbayes {command}" in run(command, "--help").output
