"""``python -m research.lab robustness``: averages over every corruption, and what is refused."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from research.corruptions import PUBLISHED, SEVERITIES, robustness
from research.corruptions.robustness import evaluate_corruptions, read_baseline
from research.lab import app

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

RECIPE = """
name: digits-small
data: {name: DATA}
architecture: {name: mlp, options: {inputs: INPUTS, hidden: [8], outputs: OUTPUTS}}
posterior: {kind: MeanField}
prior: {kind: Normal, scale: 0.3}
optimizer: {lr: 1e-2}
training: {epochs: 1, batch_size: 500}
evaluation: {samples: 1}
"""


def run(*arguments):
    return CliRunner().invoke(app(), [str(a) for a in arguments], env={"COLUMNS": "120"})


def trained(folder, **facts):
    text = RECIPE
    for key, value in facts.items():
        text = text.replace(key, str(value))
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    result = run("train", path, "--output", folder / "run")
    assert result.exit_code == 0, result.output
    return folder / "run"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs"), DATA="digits", INPUTS=64, OUTPUTS=10)


@pytest.fixture(scope="module")
def printed(folder):
    """What ``robustness`` prints, and what it writes."""
    file = folder / "corrupted.json"
    result = run("robustness", folder, "--samples", 1, "--json", file)
    assert result.exit_code == 0, result.output
    return result.output.splitlines(), json.loads(file.read_text())


def test_averages_are_over_75_evaluations(folder, printed):
    lines, written = printed
    assert [line.split()[0] for line in lines] == [*PUBLISHED, "mean", "15", "Next:"]
    assert lines[16] == written["coverage"] == "15 of 15 corruptions"
    table = written["corruptions"]
    shown = ["mean"]
    for name, metric in (("cNLL", "nll"), ("cA", "accuracy"), ("cECE", "ece")):
        values = [table[kind][str(s)][metric]["value"] for kind in PUBLISHED for s in SEVERITIES]
        assert written["mean"][name] == pytest.approx(np.mean(values))
        shown += [name, f"{np.mean(values):.4f}"]
    assert lines[15].split() == shown
    found = evaluate_corruptions(folder, samples=1, kinds=("fog",))
    assert table["fog"]["3"] == found.results["fog", 3]


def test_errors_are_relative_to_a_baseline(folder, printed, tmp_path):
    kinds, file = ("pixelate", "contrast"), tmp_path / "baseline.json"
    assert read_baseline(folder / "corrupted.json", PUBLISHED) == printed[1]["errors"]
    for factor in (1.0, 0.8):
        rates = {kind: [factor * rate for rate in printed[1]["errors"][kind]] for kind in kinds}
        file.write_text(json.dumps({"errors": rates}))
        found = evaluate_corruptions(folder, samples=1, baseline=file, kinds=kinds).of()
        assert found["mCE"] == pytest.approx(1 / factor)


def test_absent_photographs_are_named(folder, monkeypatch):
    monkeypatch.setattr(robustness, "frost_is_here", lambda: False)
    monkeypatch.setattr(robustness, "SEVERITIES", (1,))
    found = evaluate_corruptions(folder, samples=1)
    assert found.coverage == "14 of 15 corruptions; for frost run: pip install 'leanbayes[frost]'"
    assert "frost" not in found.kinds
    assert len(found.kinds) == 14


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("robustness", "--corrupt", "foog"), "corruption 'foog' is unknown; did you mean 'fog'?"),
        (("robustness", "--baseline", "no.json"), "no.json does not exist; write one with"),
    ],
)
def test_mistakes_get_one_sentence(folder, arguments, sentence):
    command, *options = arguments
    result = run(command, folder, *options)
    assert result.exit_code != 0
    said = " ".join((str(result.exception) + result.output).split())
    assert sentence in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({}, "is not a file of corruption errors"),
        ({"errors": {}}, "has no five error rates from 0 to 1 for fog"),
        ({"errors": {"fog": [0.1, 0.2]}}, "has no five error rates"),
        ({"errors": {"fog": [0.1, 0.2, 0.3, 0.4, 40]}}, "has no five error rates"),
        ({"errors": {"fog": [0, 0, 0, 0, 0]}}, "has no errors for fog"),
        ({"errors": [1]}, "has no five error rates"),
    ],
)
def test_a_bad_baseline_is_refused(tmp_path, content, sentence):
    file = tmp_path / "baseline.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=sentence):
        read_baseline(file, ["fog"])


def test_vectors_are_no_images(tmp_path):
    (tmp_path / "numbers.csv").write_text(
        "a,b,y\n" + "".join(f"{i},{-i},{'no' if i % 2 else 'yes'}\n" for i in range(60))
    )
    folder = trained(tmp_path, DATA=tmp_path / "numbers.csv", INPUTS=2, OUTPUTS=2)
    for command in (("robustness",), ("robustness", "--corrupt", "fog")):
        result = run(command[0], folder, *command[1:])
        assert result.exit_code != 0
        assert "only images can be corrupted" in str(result.exception)
