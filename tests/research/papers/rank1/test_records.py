"""The study of health records: distances to the true risk, and its table."""

import pytest
import torch
from typer.testing import CliRunner

import leanbayes as lb
from leanbayes.lab.files import write_json
from leanbayes.lab.recipe_files import read_recipe
from leanbayes.lab.train import train
from leanbayes.testing import assert_mean
from research.__main__ import app
from research.papers.rank1.health import generate_cohort
from research.papers.rank1.paper import PAPER
from research.papers.rank1.records import RISK, excess, judge_records, records_blocks, records_table

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

COHORT = {"train": 300, "validation": 100, "test": 400, "days": 4, "vocabulary": 20}
NETWORK = {"vocabulary": 20, "days": 4, "rnn_dim": 8, "hidden_layer_dim": 8, "code_dimension": 4}
QUICK = {
    "training.epochs": 1,
    "kl.options": {"steps": 3},
    "evaluation": {"samples": 2, "validation_samples": 1},
    **{f"data.options.{name}": value for name, value in COHORT.items()},
    **{f"architecture.options.{name}": value for name, value in NETWORK.items()},
}


def quick(row, seed):
    kl = {} if row == "gaussian" else {"kl": {"kind": "constant"}}
    settings = {key: v for key, v in QUICK.items() if row == "gaussian" or key != "kl.options"}
    settings |= {"seed": seed, **kl}
    return read_recipe(f"rank1/ehr-lstm-{row}", budget="cpu", settings=settings)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("records"), []
    for row, seed in (("deterministic", 1), ("gaussian", 1), ("gaussian", 2)):
        found.append(folder / f"{row}-{seed}")
        train(quick(row, seed), found[-1], progress=False)
    return found


@pytest.fixture(scope="module")
def study(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("results") / "studies" / "records.json"
    return out, judge_records(runs, out)


@pytest.mark.checklist("R19")
def test_excess_is_the_expected_difference_of_nlls():
    risk = torch.rand(20_000, dtype=torch.float64)
    probs = torch.rand(20_000, dtype=torch.float64)
    died = torch.bernoulli(risk)
    nll = lb.likelihoods.Bernoulli().log_prob
    difference = nll(torch.logit(risk), died) - nll(torch.logit(probs), died)
    found = excess(risk, probs)
    assert_mean(difference, found.value, "difference of log likelihoods")
    assert found.value > 0
    sure = excess(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    assert sure.value == pytest.approx(0, abs=1e-9)


@pytest.mark.checklist("R19")
def test_runs_are_compared_with_the_true_risk(study):
    _, found = study
    assert list(found["parts"]) == [
        RISK,
        "deterministic, seed 1",
        "gaussian, seed 1",
        "gaussian, seed 2",
    ]
    cohort = generate_cohort(**found["settings"]["options"])["test"]
    scores = cohort.scores()
    risk = found["parts"][RISK]["metrics"]
    for name, value in scores.items():
        assert risk[name]["value"] == pytest.approx(value)
    assert risk["excess"]["value"] == pytest.approx(0, abs=1e-12)
    for name, part in found["parts"].items():
        if name != RISK:
            assert part["metrics"]["excess"]["value"] > 0
            assert part["metrics"]["auroc"]["value"] < risk["auroc"]["value"]
            assert {"nll", "auc_pr", "ece"} <= part["metrics"].keys()
            assert part["seed"] in (1, 2)
            assert part["versions"]
            assert part["kept"] == {"epoch": 0, "validation_nll": pytest.approx(0.4, abs=0.39)}
    assert found["parts"]["gaussian, seed 1"]["published"]["nll"] == 0.209


@pytest.mark.checklist("R19")
def test_the_table_begins_with_the_risk_and_averages_seeds(study):
    out, found = study
    lines = records_table(found).splitlines()
    assert lines[2].startswith(f"| {RISK} | – |")
    rows = {line.split(" | ")[0].strip("| "): line for line in lines[2:]}
    assert "| 2 seeds |" in rows["gaussian"]
    assert "0.209, 0.391, 0.0132 |" in rows["gaussian"]
    assert "0.213, 0.39, 0.0135 |" in rows["deterministic"]
    values = [found["parts"][f"gaussian, seed {n}"]["metrics"]["nll"]["value"] for n in (1, 2)]
    blocks = records_blocks(out.parents[1])
    cell = blocks.cells["records"]("gaussian", "nll")
    assert cell.ours == pytest.approx(sum(values) / 2)
    assert cell.error == pytest.approx(abs(values[0] - values[1]) / 2)
    assert blocks.tables["records"]("") == records_table(found)
    assert any("records" in make(out.parents[1]).tables for make in PAPER.blocks)


def test_a_study_goes_on_with_its_file_by_a_command(runs, study, monkeypatch):
    out, found = study
    monkeypatch.setattr("research.papers.rank1.records.predict", None)  # nothing is judged again
    result = CliRunner().invoke(app, ["papers", "records", *map(str, runs), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "gaussian, seed 2" in result.output
    assert judge_records(runs, out) == found


def test_what_cannot_be_compared_is_told_in_a_sentence(runs, tmp_path):
    with pytest.raises(ValueError, match="there are no runs to judge; train"):
        judge_records([], tmp_path / "a.json")
    other = tmp_path / "other"
    other.mkdir()
    text = (runs[0] / "recipe.yaml").read_text()
    (other / "recipe.yaml").write_text(text.replace("test: 400", "test: 401"))
    with pytest.raises(ValueError, match="has learned from another cohort than"):
        judge_records([runs[0], other], tmp_path / "a.json")
    (other / "recipe.yaml").write_text(text.replace("ehr-cohort", "mimic-iii"))
    with pytest.raises(ValueError, match="mimic-iii, whose true risk nobody knows; train with"):
        judge_records([other], tmp_path / "a.json")
    write_json(tmp_path / "studies" / "records.json", {"settings": {}})
    with pytest.raises(ValueError, match="run python -m research papers records"):
        records_blocks(tmp_path).tables["records"]("")
