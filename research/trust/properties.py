"""The long run of the property tests, recorded."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from leanbayes.lab.provenance import environment_facts
from research.publishing.paper import ROOT
from research.publishing.study_file import StudyFile, Tell

FILE = "tests/properties/test_properties.py"


@dataclass(frozen=True)
class Long:
    """Settings of the long run.

    Args:
        examples: Number of examples per property; compiled models have 3.
        seed: Random seed.
    """

    examples: int = 1250
    seed: int = 1


def properties() -> dict[str, int | None]:
    """Names of the properties, with the number of examples of those that set it themselves."""
    tree = ast.parse((ROOT / FILE).read_text(encoding="utf-8"))
    found: dict[str, int | None] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
            own = [k.value for c in calls for k in c.keywords if k.arg == "max_examples"]
            found[node.name] = ast.literal_eval(own[0]) if own else None
    return found


def study(settings: Long, out: Path, tell: Tell) -> dict[str, Any]:
    """Try every property with many examples; a stopped study goes on."""
    parts = {
        name: partial(_tried, name, own or settings.examples, settings)
        for name, own in properties().items()
    }
    return StudyFile(out, "properties", asdict(settings)).fill(parts, tell)


def _tried(name: str, examples: int, settings: Long) -> Mapping[str, Any]:
    command = [sys.executable, "-m", "pytest", f"{FILE}::{name}", "-q", "-p", "no:cacheprovider"]
    options = {"PROPERTIES": "long", "PROPERTIES_EXAMPLES": str(settings.examples)}
    started = time.monotonic()
    done = subprocess.run(
        [*command, "--tb=short", f"--hypothesis-seed={settings.seed}"],
        cwd=ROOT, env={**os.environ, **options}, capture_output=True, text=True,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("E  ")]
    return {
        "examples": examples,
        "passed": done.returncode == 0,
        "problem": " ".join(" ".join(lines).split())[:600] if done.returncode else "",
        "duration": time.monotonic() - started,
        **environment_facts("hypothesis"),
    }
