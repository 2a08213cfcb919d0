"""The long run of the property tests, recorded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leanbayes.lab.files import write_json
from leanbayes.lab.provenance import environment_facts
from research.publishing.paper import ROOT

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


def run(settings: Long, out: Path) -> dict[str, Any]:
    """Run the property tests with many examples and write what came of it."""
    command = [sys.executable, "-m", "pytest", FILE, "-q", "-p", "no:cacheprovider", "--tb=short"]
    options = {"PROPERTIES": "long", "PROPERTIES_EXAMPLES": str(settings.examples)}
    started = time.monotonic()
    done = subprocess.run(
        [*command, f"--hypothesis-seed={settings.seed}"],
        cwd=ROOT, env={**os.environ, **options}, capture_output=True, text=True,
    )  # fmt: skip
    outcome = done.stdout.strip().splitlines()[-1]
    if done.returncode:
        print(done.stdout)
    properties = (ROOT / FILE).read_text(encoding="utf-8").count("@given")
    result = {
        **asdict(settings),
        "properties": properties,
        "examples_per_property": settings.examples,
        "examples": (properties - 1) * settings.examples + 3,
        "outcome": outcome.partition(" in ")[0],
        "duration": time.monotonic() - started,
        **environment_facts("hypothesis"),
    }
    write_json(out, result)
    return result
