"""Planted errors: the list is seeded, every one changes its function, and tests notice them."""

import json
import os
import subprocess
import sys

from research.publishing.paper import ROOT
from research.trust.mutation.mutants import SOURCE, chosen, mutants_of
from research.trust.mutation.study import AREAS

TRY = """
import json, sys
from pathlib import Path
from research.trust.mutation.mutants import SOURCE, mutants_of
from research.trust.mutation.run import try_mutants
every = mutants_of(SOURCE / "metrics/classes.py")
tried = [m for m in every if m.function == "brier"]
try_mutants(tried, ["tests/metrics/test_metrics.py"], Path(sys.argv[1]),
            lambda m, found: print("FOUND", json.dumps(found), file=sys.stderr))
"""


def test_the_choice_depends_on_the_seed_alone():
    assert chosen("metrics", 5, 0) == chosen("metrics", 5, 0)
    assert chosen("metrics", 5, 0) != chosen("metrics", 5, 1)


def test_there_are_more_than_300_in_every_area_together():
    assert sum(len(chosen(area, 60, 0)) for area in AREAS) > 300
    assert all((SOURCE / area).is_dir() for area in AREAS)


def test_every_mutant_compiles_to_other_code():
    for mutant in mutants_of(SOURCE / "metrics" / "calibration.py"):
        code = mutant.code()
        assert code.co_qualname == mutant.function
        assert mutant.before != mutant.after


def test_a_wrong_score_is_noticed_by_a_test(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(tmp_path / "notes")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("FOUND")]
    found = [json.loads(line.removeprefix("FOUND ")) for line in lines]
    assert found, done.stderr
    arithmetic = [each for each in found if each["kind"] == "arithmetic"]
    assert arithmetic
    assert all(each["verdict"] == "killed" for each in arithmetic)
    assert all(each["test"] for each in arithmetic)
