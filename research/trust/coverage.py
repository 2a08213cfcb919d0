"""Lines and branches that the suite runs, piece by piece, and their share per folder.

A dozen cases of every parametrized test take part, so the shares are lower bounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leanbayes.lab.provenance import environment_facts
from research.publishing.paper import ROOT
from research.publishing.study_file import Tell, write_study

PACKAGE = Path("src") / "leanbayes"
COUNTED = ("num_statements", "missing_lines", "num_branches", "missing_branches")


def pieces() -> list[str]:
    """Folders and files of tests that pytest is given one after the other."""
    tests = sorted((ROOT / "tests").iterdir())
    folders = [
        p for p in tests if p.is_dir() and any(p.rglob("test_*.py")) and p.name != "research"
    ]
    files = [p for p in tests if p.match("test_*.py")]
    return [*(p.relative_to(ROOT).as_posix() for p in (*folders, *files)), PACKAGE.as_posix()]


def study(data: Path, tests: list[str], out: Path, tell: Tell) -> dict[str, Any]:
    """Measure tests that are not yet measured, and count per folder of the package."""
    data.mkdir(parents=True, exist_ok=True)
    seconds = data / "seconds.json"
    spent: dict[str, float] = json.loads(seconds.read_text()) if seconds.exists() else {}
    for piece in tests:
        if piece not in spent:
            started = time.monotonic()
            _measure(piece, data)
            spent[piece] = time.monotonic() - started
            seconds.write_text(json.dumps(spent))
            tell(piece, {"duration": spent[piece]})
    found = {
        "study": "coverage",
        "settings": {"tests": list(spent)},
        "duration": sum(spent.values()),
        **environment_facts("coverage"),
        "parts": counts(_report(data)),
    }
    write_study(out, found)
    return found


def _measure(piece: str, data: Path) -> None:
    """Run a piece of the suite; what fails is counted as run, since other tests report failures."""
    file = data / piece.replace("/", "-")
    command = [sys.executable, "-m", "coverage", "run", "--branch", f"--source={PACKAGE}"]
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no"]
    pytest += ["-p", "research.trust.few_cases", piece]
    environment = {**os.environ, "COVERAGE_FILE": f"{file}.new", "COVERAGE_CORE": "ctrace"}
    subprocess.run([*command, *pytest], cwd=ROOT, env=environment, capture_output=True)
    Path(f"{file}.new").rename(f"{file}.coverage")


def _report(data: Path) -> Mapping[str, Any]:
    """The report of all pieces together."""
    whole, report = data / "whole", data / "report.json"
    coverage = [sys.executable, "-m", "coverage"]
    every = map(str, sorted(data.glob("*.coverage")))
    combine = [*coverage, "combine", "--keep", f"--data-file={whole}", *every]
    subprocess.run(combine, cwd=ROOT, check=True, capture_output=True)
    written = [*coverage, "json", f"--data-file={whole}", "-o", str(report)]
    subprocess.run(written, cwd=ROOT, check=True, capture_output=True)
    return dict(json.loads(report.read_text())["files"])


def counts(files: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Lines, branches and missed ones, per folder of the package."""
    folders: dict[str, Counter[str]] = {}
    for name, file in files.items():
        parts = Path(name).relative_to(PACKAGE).parts
        folder = parts[0] if len(parts) > 1 else "the top"
        summary = file["summary"]
        folders.setdefault(folder, Counter()).update({key: summary[key] for key in COUNTED})
    return {folder: {key: count[key] for key in COUNTED} for folder, count in folders.items()}
