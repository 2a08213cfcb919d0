"""The study of defaults: what its file holds, what its tables say, and that it runs and resumes."""

import json
import math

import pytest
import torch

from leanbayes.training.schedules import random_weights
from research.publishing.paper import ROOT
from research.studies.defaults import study as studied
from research.studies.defaults.page import found, table, tried
from research.studies.defaults.runs import (
    DROPOUT,
    PLAIN,
    RECOMMENDED,
    Difference,
    difference,
    methods,
)
from research.studies.defaults.study import METHODS, TASKS, Rows, Settings, one, study_defaults

FILE = ROOT / "results" / "defaults.json"
SEARCH = json.loads(FILE.read_text(encoding="utf-8"))
SMALL = Settings(batch=8, rows=8, steps=4, samples=2, number_samples=3)


def test_a_run_is_a_line_and_has_what_was_measured():
    assert FILE.stat().st_size < 300_000
    lines = FILE.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith('    "') and '"task": ' in line for line in lines) == len(
        SEARCH["parts"]
    )
    for name, part in SEARCH["parts"].items():
        assert part["task"] in SEARCH["settings"]["tasks"], name
        assert part.keys() & {"validation", "test"}, name
        assert part["duration"] > 0, name
        assert part["threads"] == 1, name
        for rows in part.keys() & {"validation", "test"}:
            known = {key: value for key, value in part[rows].items() if value is not None}
            assert all(map(math.isfinite, known.values())), name
            missing = part[rows].keys() - known.keys()
            assert missing <= ({"auroc_mutual_information"} if part["method"] == PLAIN else set())


def test_the_recommended_weight_is_the_one_that_was_run():
    divisor = SEARCH["settings"]["recommended"]["weights_per_example"]
    for part in SEARCH["parts"].values():
        if part["settings"] == SEARCH["settings"]["recommended"] and "validation" in part:
            facts = SEARCH["settings"]["tasks"][part["task"]]
            weight = min(1.0, facts["examples"] / (divisor * facts["random_weights"]))
            assert part["kl_weight"] == pytest.approx(weight, rel=1e-5)


@pytest.mark.parametrize("name", ["mlp5k", "mlp20k", "cnn", "resnet"])
def test_a_network_has_the_random_weights_of_the_search(name):
    model = studied.lb.convert(TASKS[name].network(784, 0.0))
    assert random_weights(model) == SEARCH["settings"]["tasks"][name]["random_weights"]


def part(method, seed, nll, accuracy=90.0, **settings):
    metrics = {"accuracy": accuracy, "nll": nll, "ece": nll / 10}
    shared = {"task": "cnn", "method": method, "seed": seed, "settings": settings}
    return {**shared, "test": metrics, "validation": metrics}


def made_up(*parts):
    tasks = {"cnn": {"title": "CNN"}}
    settings = {"tasks": tasks, "recommended": {"c": 1.4}}
    return {"settings": settings, "parts": dict(enumerate(parts))}


def test_differences_are_paired_by_seed():
    plain = [part(PLAIN, 0, 9.0), part(PLAIN, 1, 0.5), part(PLAIN, 2, 0.7)]
    dropout = [part(DROPOUT, 1, 0.4, rate=0.2), part(DROPOUT, 2, 0.4, rate=0.2)]
    other = [part(DROPOUT, 1, 0.1, rate=0.1), part("k-tied", 1, 0.0, c=2.0)]
    ours = [part("k-tied", 1, 0.4, 89.0, c=1.4), part("k-tied", 2, 0.5, 90.5, c=1.4)]
    study = made_up(*plain, *dropout, *other, *ours)
    assert {name: list(seeds) for name, seeds in methods(study, "cnn", "test").items()} == {
        PLAIN: [0, 1, 2],
        DROPOUT: [1, 2],
        RECOMMENDED: [1, 2],
    }
    last = table(study, "test").splitlines()[-1]
    assert last.startswith(
        "| CNN | recommended | 1, 2 | 89.75 | 0.450 | 0.045 | 2 | −0.25 ± 0.75 |"
    )
    assert "−0.150 ± 0.050" in last


def test_one_pair_has_no_error_and_none_no_difference():
    assert difference([]) is None
    assert str(difference([0.25])) == "+0.2500"
    assert difference([1.0, 3.0]) == Difference(2.0, 1.0, 2)


def test_the_conclusion_counts_pairs_that_are_worse():
    worse = [
        {**run, "test": {**run["test"], "nll": 99.0}} if run["method"] == "k-tied" else run
        for run in SEARCH["parts"].values()
        if "test" in run
    ]
    pairs = found({**SEARCH, "parts": dict(enumerate(worse))}).splitlines()[0]
    assert "in 0 of " in pairs


def test_rules_of_weight_one_that_failed_are_shown():
    first, *_ = tried(SEARCH).splitlines()
    assert "CNN +" in first
    assert "halved images +" in first


def fake_rows(task, seed):
    shape = (3, 32, 32) if task.sgd else (1, 28, 28)
    generator = torch.Generator().manual_seed(seed)
    if not task.epochs:
        x, y = torch.rand(20, 4, generator=generator), torch.rand(20, 1, generator=generator)
        return Rows(x, y, x[:6], y[:6], 2.0)
    x = torch.rand(20, *shape, generator=generator)
    y = torch.randint(10, (20,), generator=generator)
    return Rows(x, y, x[:6], y[:6])


@pytest.fixture
def small(monkeypatch):
    tasks = {name: task._replace(epochs=min(1, task.epochs)) for name, task in TASKS.items()}
    monkeypatch.setattr(studied, "TASKS", tasks)
    monkeypatch.setattr(studied, "read", fake_rows)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["mlp5k", "resnet", "concrete"])
def test_every_method_runs_and_is_repeatable(name, method):
    result = one(name, method, 0, SMALL)["test"]
    assert result.keys() >= {"nll"} | ({"rmse"} if name == "concrete" else {"accuracy"})
    assert result == one(name, method, 0, SMALL)["test"]


@pytest.mark.usefixtures("small")
def test_a_stopped_study_goes_on_and_has_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(studied, "TASKS", {"wine": studied.TASKS["wine"]})
    out, told = tmp_path / "defaults.json", []
    first = study_defaults(SMALL, out, seeds=1)
    again = study_defaults(SMALL, out, seeds=2, tell=lambda key, _: told.append(key))
    assert len(told) == 2 * len(METHODS)
    assert all(again["parts"][key] == run for key, run in first["parts"].items())
    assert len(table(again, "test").splitlines()) == 2 + len(METHODS)
    with pytest.raises(ValueError, match="with another batch"):
        study_defaults(Settings(), out)
