"""The study of defaults: what its file holds, what its tables say, and that it runs and resumes."""

import json
import math

import pytest

import leanbayes as lb
from leanbayes.training.schedules import random_weights
from research.publishing.paper import ROOT
from research.studies.defaults.page import found, table, tried
from research.studies.defaults.runs import (
    DROPOUT,
    PLAIN,
    RECOMMENDED,
    Difference,
    difference,
    methods,
)
from research.studies.leaderboard.networks import cnn, mlp

FILE = ROOT / "results" / "defaults.json"
SEARCH = json.loads(FILE.read_text(encoding="utf-8"))


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


def test_the_weight_of_the_rule_is_the_one_that_was_run():
    divisor = SEARCH["settings"]["recommended"]["weights_per_example"]
    for part in SEARCH["parts"].values():
        if part["settings"] == SEARCH["settings"]["recommended"] and "validation" in part:
            facts = SEARCH["settings"]["tasks"][part["task"]]
            weight = min(1.0, facts["examples"] / (divisor * facts["random_weights"]))
            assert part["kl_weight"] == pytest.approx(weight, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "network"),
    [("mlp5k", mlp(100, 784, 0.0)), ("mlp20k", mlp(400, 784, 0.0)), ("cnn", cnn(784, 0.0))],
)
def test_a_network_has_the_random_weights_of_the_search(name, network):
    model = lb.convert(network)
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
    assert last.startswith("| CNN | found | 1, 2 | 89.75 | 0.450 | 0.045 | 2 | −0.25 ± 0.75 |")
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
