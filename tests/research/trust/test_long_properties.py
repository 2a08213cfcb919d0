"""The long run of the properties: all of them, part by part."""

import json
import subprocess

import pytest

from research.publishing.paper import ROOT
from research.trust import properties as long_run


def test_every_property_is_in_the_long_run():
    named = long_run.properties()
    assert len(named) == (ROOT / long_run.FILE).read_text(encoding="utf-8").count("@given")
    assert named["test_a_traced_model_computes_what_it_does_eagerly"] == 3
    assert named["test_a_saved_model_is_the_same_model"] is None


@pytest.mark.parametrize("code", [0, 1])
def test_a_failed_property_is_recorded_with_its_problem(code, tmp_path, monkeypatch):
    tried = []

    def run(command, *, env, **options):
        tried.append((command[3], env["PROPERTIES_EXAMPLES"]))
        return subprocess.CompletedProcess(command, code, "E   assert 1 == 2\n1 failed", "")

    monkeypatch.setattr(long_run.subprocess, "run", run)
    monkeypatch.setattr(long_run, "environment_facts", lambda *names: {})
    out = tmp_path / "properties.json"
    for _ in range(2):  # the second time goes on, and nothing is left to do
        study = long_run.study(long_run.Long(examples=7), out, lambda name, part: None)
    assert len(tried) == len(study["parts"]) == len(long_run.properties())
    assert {count for _, count in tried} == {"7"}
    part = json.loads(out.read_text())["parts"]["test_a_saved_model_is_the_same_model"]
    assert part["passed"] == (code == 0)
    assert part["problem"] == ("E assert 1 == 2" if code else "")
