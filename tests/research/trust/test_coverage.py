"""Lines and branches that the suite runs: every test file is in a piece, folders are counted."""

import json
from pathlib import Path

from research.publishing.paper import ROOT
from research.trust import coverage
from research.trust.page import coverage_table


def test_every_test_of_the_package_is_in_a_piece():
    pieces = [ROOT / piece for piece in coverage.pieces()]
    tests = [p for p in (ROOT / "tests").rglob("test_*.py") if "research" not in p.parts]
    assert all(any(p.is_relative_to(piece) for piece in pieces) for p in tests)
    assert ROOT / "src/leanbayes" in pieces


def summary(lines, missing, branches, untaken):
    counted = dict(zip(coverage.COUNTED, (lines, missing, branches, untaken), strict=True))
    return {"summary": {**counted, "percent_covered": 1.0}}


def test_files_are_counted_per_folder():
    found = coverage.counts(
        {
            "src/leanbayes/ops.py": summary(10, 1, 4, 0),
            "src/leanbayes/lab/a/b.py": summary(20, 2, 0, 0),
            "src/leanbayes/lab/c.py": summary(5, 3, 2, 1),
        }
    )
    assert list(found["the top"].values()) == [10, 1, 4, 0]
    assert list(found["lab"].values()) == [25, 5, 2, 1]


def test_a_stopped_measurement_goes_on_and_is_a_table(tmp_path, monkeypatch):
    measured = []
    report = {
        "src/leanbayes/ops.py": summary(10, 1, 4, 1),
        "src/leanbayes/lab/a.py": summary(30, 9, 0, 0),
    }
    monkeypatch.setattr(coverage, "_measure", lambda piece, data: measured.append(piece))
    monkeypatch.setattr(coverage, "_report", lambda data: report)
    first = coverage.pieces()[0]
    (tmp_path / "seconds.json").write_text(json.dumps({first: 60.0}))
    study = coverage.study(
        tmp_path, coverage.pieces(), tmp_path / "coverage.json", lambda name, part: None
    )
    assert measured == coverage.pieces()[1:]
    assert study["duration"] >= 60.0
    rows = coverage_table({**study, "revision": "0123456789"}).splitlines()
    assert rows[0].endswith("revision `0123456`.")
    assert "| all but lab | 10 | 90.0 | 4 | 75.0 |" in rows
    assert "| all | 40 | 75.0 | 4 | 75.0 |" in rows


def test_a_piece_is_measured_with_branches(tmp_path, monkeypatch):
    def run(command, *, cwd, env, capture_output):
        assert "--branch" in command
        assert command[-1] == "tests/metrics"
        Path(env["COVERAGE_FILE"]).write_text("data")

    monkeypatch.setattr(coverage.subprocess, "run", run)
    coverage._measure("tests/metrics", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["tests-metrics.coverage"]
