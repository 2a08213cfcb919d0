"""Measurements of a recipe by name: how they are read, written and refused."""

import pytest

from leanbayes.lab.measurements import MEASUREMENTS, Measurement
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.recipe_files import parse_yaml
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from research.papers.k_tied.probe import Probe

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

PROBE = {"steps": [4], "layer": "dense1", "window": 2}


class TwiceTheSeed(Measurement):
    """A column that is known."""

    factor: int = 2

    def after_epoch(self, subject):
        return {"twice": self.factor * subject.seed}


@pytest.fixture(autouse=True)
def _register(registered):
    registered(MEASUREMENTS, "twice", TwiceTheSeed)


def recipe(**changes):
    values = {
        "name": "measured",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [8]}},
        "posterior": "MeanField",
        "prior": {"kind": "Normal", "scale": 1.0},
        "training": {"epochs": 2, "batch_size": 300},
        "evaluation": {"samples": 2},
    }
    return check_recipe({**values, **changes})


def test_columns_and_steps_of_several_are_in_one_run(tmp_path):
    spec = recipe(measurements=[{"kind": "probe", **PROBE}, {"kind": "twice", "factor": 3}])
    result = train(spec, tmp_path / "run", progress=False)
    assert Run(tmp_path / "run").columns["twice"] == [3 * 42] * 2
    assert set(result["probe"]) == {"4"}
    assert Run(tmp_path / "run").recipe == spec


def test_a_recipe_of_the_first_runs_reads_the_same():
    former = recipe(probe=PROBE, phases=None, sparse_curves=None)
    assert former == recipe(measurements=[{"kind": "probe", **PROBE}])
    assert former.measurements == (Probe(**PROBE),)
    assert "phases" not in parse_yaml(former.to_yaml())


def test_a_run_folder_of_the_first_runs_is_resumed(tmp_path):
    spec = recipe(measurements=[{"kind": "probe", **PROBE}])
    result = train(spec, tmp_path / "run", progress=False)
    file = tmp_path / "run" / "recipe.yaml"
    listed = file.read_text(encoding="utf-8")
    start, end = listed.index("measurements:"), listed.index("seed:")
    former = "probe: {steps: [4], layer: dense1, window: 2}\nphases: null\n"
    file.write_text(listed[:start] + former + listed[end:], encoding="utf-8")
    assert train(spec, tmp_path / "run", resume=True, progress=False) == result


def test_a_written_recipe_reads_back_the_same():
    spec = recipe(measurements=["twice", {"kind": "probe", **PROBE}])
    assert check_recipe(parse_yaml(spec.to_yaml())) == spec


@pytest.mark.parametrize(
    ("listed", "sentence"),
    [
        (["prob"], r"measurements\.0: measurement 'prob' is unknown; did you mean 'probe'\?"),
        ([{"steps": [3]}], r"measurements\.0: measurement '' is unknown; choose one of"),
        ([{"kind": "probe", "steps": [3]}], r"measurements\.0: key 'layer' is missing"),
        (
            [{"kind": "probe", **PROBE, "windw": 3}],
            r"key 'windw' is unknown; did you mean 'window'",
        ),
        ([{"kind": "probe", **PROBE, "window": 1}], r"measurements\.0: window: .* greater than"),
        (["twice", "twice"], r"measurements: 'twice' is listed twice; list it once"),
        ([3], r"measurements\.0: "),
        ("twice", r"measurements: "),
    ],
)
def test_what_is_wrong_is_said_when_the_recipe_is_read(listed, sentence):
    with pytest.raises(ValueError, match=sentence):
        recipe(measurements=listed)


def test_a_former_key_that_is_wrong_is_refused_too():
    with pytest.raises(ValueError, match=r"measurements\.0: key 'layer' is missing"):
        recipe(probe={"steps": [3]})
    with pytest.raises(ValueError, match="'probe' is listed twice"):
        recipe(probe=PROBE, measurements=[{"kind": "probe", **PROBE}])
