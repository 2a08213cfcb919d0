"""Recipes that need a checkout: what the installed package says, and what a checkout adds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import leanbayes
from leanbayes.errors import CheckoutOnlyError
from leanbayes.lab.architectures import ARCHITECTURES
from leanbayes.lab.data.sources import SOURCES
from leanbayes.lab.measurements import MEASUREMENTS
from leanbayes.lab.optimizers import OPTIMIZERS
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.recipe_files import parse_yaml, read_recipe, recipe_to_train
from leanbayes.lab.recipe_names import recipe_names
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from leanbayes_cli import errors
from research import extensions, lab

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

EHR = "rank1/ehr-lstm-gaussian"
PHASES = {"kind": "phases", "examples": 50, "samples": 2}


@pytest.fixture
def wheel(monkeypatch):
    """The registries as the installed package has them."""
    for registry in (ARCHITECTURES, MEASUREMENTS, OPTIMIZERS, SOURCES):
        things = {n: t for n, t in registry.items() if n not in registry.checkout_only}
        monkeypatch.setattr(registry, "_things", things)


def recipe(**changes):
    values = {
        "name": "measured",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [8]}},
        "posterior": "MeanField",
        "prior": {"kind": "Normal", "scale": 1.0},
        "training": {"epochs": 1, "batch_size": 300},
        "evaluation": {"samples": 2},
        "measurements": [PHASES],
    }
    return check_recipe({**values, **changes})


def test_a_checkout_registers_every_name_that_the_package_says_it_does():
    assert extensions.__all__
    for registry in (ARCHITECTURES, MEASUREMENTS, OPTIMIZERS, SOURCES):
        assert registry.checkout_only <= set(registry)


@pytest.mark.parametrize(
    ("registry", "name"),
    [
        (SOURCES, "mimic-iii"),
        (ARCHITECTURES, "ehr-rnn"),
        (MEASUREMENTS, "phases"),
        (OPTIMIZERS, "natural"),
    ],
)
def test_the_package_alone_says_that_a_name_needs_a_checkout(wheel, registry, name):
    with pytest.raises(CheckoutOnlyError, match=f"{name}' needs a checkout of leanbayes; there, i"):
        registry[name]


@pytest.mark.parametrize("options", [[], ["--budget", "paper"]])
def test_the_command_of_the_package_names_the_one_of_a_checkout(options, tmp_path):
    source = str(Path(leanbayes.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "leanbayes", "train", EHR, *options],
        env={**os.environ, "PYTHONPATH": source},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    command = " ".join(["python -m research.lab train", EHR, *options])
    assert done.stderr.strip() == (
        f"leanbayes: data set 'mimic-iii' needs a checkout of leanbayes; there, run: {command}"
    )
    assert not list(tmp_path.iterdir())


def test_a_stopped_command_of_a_checkout_goes_on_as_it_was_started(monkeypatch):
    class Spec:
        name = "research.lab"

    monkeypatch.setattr(sys.modules["__main__"], "__spec__", Spec)
    monkeypatch.setattr("sys.argv", ["lab.py", "train", EHR])
    assert errors._way_on("train") == f"go on with: python -m research.lab train {EHR} --resume"


def test_a_budget_does_not_replace_the_data(tmp_path):
    """Who trains on the generated cohort says so."""
    refused = CliRunner().invoke(lab.app(), ["train", EHR, "--output", str(tmp_path / "run")])
    assert refused.exit_code == 1
    assert (
        "is for the data set 'mimic-iii', and the budget 'cpu' would replace it by 'ehr-cohort'"
        in (refused.output)
    )
    assert not (tmp_path / "run").exists()
    named = recipe_to_train(EHR, budget="cpu", settings={"data.name": "ehr-cohort"})
    assert named == read_recipe(EHR, budget="cpu")
    assert recipe_to_train(EHR, budget="paper").data.name == "mimic-iii"


def test_no_other_recipe_has_a_budget_with_other_data():
    for name in recipe_names():
        if not name.startswith("rank1/ehr-lstm-"):
            assert recipe_to_train(name, budget="cpu") == read_recipe(name, budget="cpu")


def test_the_package_alone_trains_without_a_measurement_of_a_checkout(wheel, tmp_path):
    """The network is the same; the run says that nothing was measured."""
    with pytest.warns(UserWarning, match="measurement 'phases' is skipped: it needs a checkout"):
        result = train(recipe(), tmp_path / "run", progress=False)
    plain = train(recipe(measurements=[]), tmp_path / "plain", progress=False)
    assert result["metrics"] == plain["metrics"]
    assert Run(tmp_path / "run").recipe.measurements == ()
    assert result["recipe"]["measurements"] == []


def test_the_package_alone_reads_and_writes_such_a_measurement(wheel, request):
    alone = recipe()
    assert check_recipe(parse_yaml(alone.to_yaml())) == alone
    assert parse_yaml(alone.to_yaml())["measurements"] == [PHASES]
    assert recipe(measurements=[], phases={"examples": 50, "samples": 2}) == alone
    with pytest.raises(ValueError, match="'phases' is listed twice"):
        recipe(measurements=[PHASES, PHASES])
