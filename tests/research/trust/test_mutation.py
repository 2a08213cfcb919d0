"""Planted errors: the list is seeded, every one changes its function, and tests notice them."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from research.publishing.paper import ROOT
from research.trust.few_cases import CASES, few_of_each
from research.trust.mutation.mutants import SOURCE, chosen, mutants_of
from research.trust.mutation.native import FILES, chosen_native, native_mutants
from research.trust.mutation.run import promising_first
from research.trust.mutation.study import AREAS, NATIVE

TRY = """
import json, sys
from pathlib import Path
from research.trust.few_cases import CASES, few_of_each
from research.trust.mutation.mutants import SOURCE, mutants_of
from research.trust.mutation.run import try_mutants
every = mutants_of(SOURCE / "metrics/classes.py")
tried = [m for m in every if m.function == "brier"]
try_mutants(tried, ["tests/metrics/test_metrics.py"], Path(sys.argv[1]),
            lambda m, found: print("FOUND", json.dumps(found), file=sys.stderr))
"""


LOAD = """
import json
import torch
from leanbayes.kernels import dispatch
from research.trust.mutation.native import load_kernels, native_mutants

def drawn():
    noise, w = dispatch.normals((2,), 0), torch.zeros(2)
    scale = torch.tensor([1.0, 2.0])
    dispatch.loaded().draw_forward(None, scale.data_ptr(), w.data_ptr(), 1, 2, 0, 1)
    return (w / noise).tolist()

assert load_kernels()
found = {"unchanged": drawn()}
line = next(m for m in native_mutants("kernels/kernels.cpp") if "o[j] = s[j] * e;" in m.before)
assert load_kernels({line.file: {line.at: line.before.replace("s[j] * e", "-s[j] * e")}})
print(json.dumps({**found, "changed": drawn()}))
"""


def test_the_choice_depends_on_the_seed_alone():
    assert chosen("metrics", 5, 0) == chosen("metrics", 5, 0)
    assert chosen("metrics", 5, 0) != chosen("metrics", 5, 1)


def test_there_are_more_than_300_in_every_area_together():
    folders = set(AREAS) - {NATIVE}
    assert sum(len(chosen(area, 60, 0)) for area in folders) + len(chosen_native(60, 0)) > 300
    assert all((SOURCE / area).is_dir() for area in folders)


def test_every_mutant_compiles_to_other_code():
    for mutant in mutants_of(SOURCE / "metrics" / "classes.py"):
        code = mutant.code()
        assert code.co_qualname == mutant.function
        assert mutant.before != mutant.after


def test_every_change_of_a_kernel_changes_its_line():
    assert chosen_native(5, 0) == chosen_native(5, 0)
    for file in FILES:
        lines = (SOURCE / file).read_text(encoding="utf-8").splitlines()
        for mutant in native_mutants(file):
            assert lines[mutant.at - 1].strip() == mutant.before
            assert mutant.after.strip() != mutant.before


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_a_changed_kernel_is_loaded_in_place_of_the_installed_one():
    done = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {"unchanged": [1.0, 2.0], "changed": [-1.0, -2.0]}


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


def test_few_cases_of_a_parametrized_test_are_kept():
    names = ["test_a", *(f"test_b[{i}]" for i in range(40)), "test_c[0]", "test_c[1]"]
    items = [SimpleNamespace(nodeid=f"tests/test_x.py::{name}") for name in names]
    kept = [item.nodeid.partition("::")[2] for item in few_of_each(items)]
    assert kept == [item.nodeid.partition("::")[2] for item in few_of_each(items)]
    assert len([name for name in kept if name.startswith("test_b")]) == CASES
    assert {"test_a", "test_c[0]", "test_c[1]"} < set(kept)


def test_one_case_of_every_test_comes_before_a_second_one():
    seconds = {"a[0]": 1.0, "a[1]": 2.0, "b[0]": 9.0, "c": 5.0}
    assert promising_first(seconds, seconds) == ["a[0]", "c", "b[0]", "a[1]"]
