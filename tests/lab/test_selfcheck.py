"""``leanbayes selfcheck``: a sound installation passes, a broken one is found."""

import pytest
import torch
from typer.testing import CliRunner

import leanbayes as lb
from leanbayes.distributions import LocationScale
from leanbayes.lab.selfcheck import Finding, checks
from leanbayes.lab.selfcheck import selfcheck as run_checks
from leanbayes_cli import app

CHECKS = dict(checks())


def selfcheck():
    return CliRunner().invoke(app(), ["selfcheck"], env={"COLUMNS": "120"})


def only(monkeypatch, *words):
    chosen = {name: check for name, check in CHECKS.items() if any(word in name for word in words)}
    assert len(chosen) == len(words)
    module = __import__("leanbayes.lab.selfcheck", fromlist=["checks"])
    monkeypatch.setattr(module, "checks", chosen.items)


@pytest.mark.parametrize("name", CHECKS)
def test_a_sound_installation_passes(name):
    CHECKS[name]()


def test_the_command_prints_versions_and_a_verdict(monkeypatch):
    only(monkeypatch, "prior He", "file")
    result = selfcheck()
    assert result.exit_code == 0, result.output
    assert f"leanbayes {lb.__version__}, torch {torch.__version__}" in result.output
    assert "2 of 2 checks passed" in result.output


def test_noise_that_is_too_small_is_found(monkeypatch):
    moments = LocationScale.moments

    def smaller(self, x, op):
        law = moments(self, x, op)
        return law._replace(variance=0.8 * law.variance)

    monkeypatch.setattr(LocationScale, "moments", smaller)
    only(monkeypatch, "posterior MeanField", "prior He")
    findings = run_checks()
    assert [bool(finding.problem) for finding in findings] == [True, False]
    assert "standard errors" in findings[0].problem
    result = selfcheck()
    assert result.exit_code != 0
    assert "1 of 2 checks passed" in result.output


def test_a_fit_with_another_kl_is_found(monkeypatch):
    module = __import__("leanbayes.training.objective", fromlist=["kl"])
    monkeypatch.setattr(module, "kl", lambda model: 0.1 * lb.kl(model))
    only(monkeypatch, "linear regression")
    (finding,) = run_checks()
    assert "AssertionError" in finding.problem


def test_a_finding_reads_as_a_line():
    assert str(Finding("law", "", 1.0)) == "law: ok (1.0 s)"
    assert str(Finding("law", "off", 1.0)) == "law: FAILED: off (1.0 s)"
