"""A policy trained with several seeds, into one file."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import leanbayes_cli
from research import lab
from research.papers.variance import explore as module
from research.papers.variance.explore import train_seeds
from research.papers.variance.reinforce import PolicyGradient

pytest.importorskip("gymnasium")

QUICK = PolicyGradient("variance", episodes=4, environments=2, hidden=4, steps=5)
OPTIONS = ["--episodes", "4", "--environments", "2", "--steps", "5", "--seeds", "2"]


def run(*arguments):
    words = ["explore", *map(str, arguments)]
    return CliRunner().invoke(lab.app(), words, env={"COLUMNS": "200"})


def test_the_file_says_what_was_done_and_with_what(tmp_path):
    out = tmp_path / "new" / "study.json"
    study = train_seeds("CartPole-v0", QUICK, out, seeds=3)
    assert json.loads(out.read_text(encoding="utf-8")) == study
    assert study["environment"] == "CartPole-v0"
    assert study["settings"]["policy"] == "variance"
    assert [each["seed"] for each in study["runs"]] == [0, 1, 2]
    for each in study["runs"]:
        assert each["finished"]
        assert len(each["returns"]) == 4
        assert each["seconds"] > 0
        assert {"leanbayes", "torch", "gymnasium"} == set(each["versions"])
    values = [each["last_100"]["value"] for each in study["runs"]]
    assert study["last_100"]["value"] == pytest.approx(sum(values) / 3)
    assert len(out.read_text(encoding="utf-8").splitlines()) < 90  # returns are on one line


def test_a_stopped_study_goes_on_with_the_seeds_that_are_missing(tmp_path, monkeypatch):
    whole = train_seeds("CartPole-v0", QUICK, tmp_path / "whole.json", seeds=2)
    out = tmp_path / "study.json"

    update = module.Reinforce._update

    def stopped(learner, environments):
        if learner.seed == 1 and learner.result.returns:
            raise KeyboardInterrupt
        return update(learner, environments)

    with monkeypatch.context() as patched:
        patched.setattr(module.Reinforce, "_update", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_seeds("CartPole-v0", QUICK, out, seeds=2)
    done = json.loads(out.read_text(encoding="utf-8"))
    assert [(each["finished"], len(each["returns"])) for each in done["runs"]] == [
        (True, 4),
        (False, 2),
    ]
    assert done["last_100"] == {"value": done["runs"][0]["last_100"]["value"], "error": 0.0}
    assert len(train_seeds("CartPole-v0", QUICK, out, seeds=1)["runs"]) == 1
    told = []
    again = train_seeds(
        "CartPole-v0", QUICK, out, seeds=2, tell=lambda each: told.append(each["seed"])
    )
    assert told == [0, 1]
    assert again["runs"][0] == done["runs"][0]
    assert [each["returns"] for each in again["runs"]] == [
        each["returns"] for each in whole["runs"]
    ]
    assert again["last_100"] == whole["last_100"]


def test_a_file_of_something_else_is_not_overwritten(tmp_path):
    out = tmp_path / "study.json"
    train_seeds("CartPole-v0", QUICK, out, seeds=1)
    with pytest.raises(
        ValueError, match=r"another lr: it was 0\.\d+ and is now 0.1; undo the change"
    ):
        train_seeds("CartPole-v0", replace(QUICK, lr=0.1), out, seeds=1)
    with pytest.raises(ValueError, match="another environment: it was 'CartPole-v0' and is now 'A"):
        train_seeds("Acrobot-v1", QUICK, out, seeds=1)
    out.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="is not a study of a policy; choose another --output"):
        train_seeds("CartPole-v0", QUICK, out, seeds=1)


def test_the_command_prints_a_line_for_every_seed(tmp_path):
    out = tmp_path / "study.json"
    result = run("CartPole-v0", *OPTIONS, "--policy", "noise", "--output", out)
    assert result.exit_code == 0, result.output
    assert "seed 1: return 5.0 ± 0.0 over the last 4 of 4 episodes" in result.output
    assert "mean over 2 seeds 5.0 ± 0.0" in result.output
    assert json.loads(out.read_text(encoding="utf-8"))["settings"]["policy"] == "noise"


def test_the_command_tells_mistakes_in_one_sentence(tmp_path, monkeypatch):
    result = run("CartPol-v1", *OPTIONS, "--output", tmp_path / "a.json")
    assert result.exit_code == 1
    assert result.output.strip() == (
        "leanbayes: environment 'CartPol-v1' is unknown; did you mean 'CartPole-v1'?"
    )
    monkeypatch.setattr("sys.argv", ["lab.py", "explore", "CartPole-v0"])
    monkeypatch.setitem(__import__("sys").modules, "gymnasium", None)
    with pytest.raises(SystemExit) as stopped:
        leanbayes_cli.run_app(lab.app)
    assert str(stopped.value) == (
        "leanbayes: gymnasium is not installed; run pip install 'leanbayes[research]'"
    )
