"""The suite itself: tests mirror the package, and share helpers only through tests/support."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import leanbayes as lb

TESTS = Path(__file__).parent
FILES = {path.relative_to(TESTS).as_posix(): path for path in sorted(TESTS.rglob("*.py"))}
PACKAGE = Path(lb.__file__).parent
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
NOT_MIRRORED = {"testing"}
"""What every test of a posterior, prior, op, layer or likelihood runs."""
NOT_ROOMS = {"research", "properties"}
"""Tests of the research code, and properties that hold in several rooms."""


def imported(path):
    """The modules that a file imports, dotted names in full."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


@pytest.mark.parametrize("name", FILES)
def test_no_test_imports_from_another_test(name):
    for module in imported(FILES[name]):
        last = module.rpartition(".")[2]
        assert not last.startswith("test_"), f"{name} imports {module}: move it to tests/support"
        assert not module.startswith((".", "tests", "conftest")), f"{name} imports {module}"


def test_helpers_are_not_tests():
    assert not list((TESTS / "support").rglob("test_*.py"))


def test_every_room_of_the_package_has_a_folder_of_tests():
    folders = {path.name for path in TESTS.iterdir() if any(path.glob("**/test_*.py"))}
    assert set(ROOMS) - NOT_MIRRORED <= folders
    assert folders - set(ROOMS) == NOT_ROOMS


def test_names_of_test_files_are_unique():
    """Folders of tests are not packages, so that two modules of one name would be one."""
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)


DRAWING = """
import json, random
import numpy, pytest, torch

def drawn():
    return torch.rand(1).item(), numpy.random.rand(), random.random()

AT_IMPORT = torch.rand(1).item()

@pytest.fixture(scope="module")
def shared():
    return drawn()

def test_one():
    assert drawn()

def test_two(request):
    before = drawn()
    shared = request.getfixturevalue("shared")
    print("\\nDREW", json.dumps([AT_IMPORT, before, shared, drawn()]))

def test_three(shared):
    print("\\nDREW", json.dumps([AT_IMPORT, shared, drawn()]))
"""
"""Draws at import, in a fixture that tests share, and before and after one of them needs it."""


def numbers_drawn(folder, *names):
    """What the tests of these names print, with the suite's own conftest.py."""
    command = [sys.executable, "-m", "pytest", "-sq", "-p", "no:cacheprovider", *names]
    said = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    lines = (line for line in said.splitlines() if line.startswith("DREW"))
    return [json.loads(line.removeprefix("DREW")) for line in lines]


def test_numbers_depend_on_no_other_module_or_test(tmp_path):
    """Neither on modules that were imported before, nor on who needs a shared fixture first."""
    shutil.copy(TESTS.parent / "conftest.py", tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(DRAWING)
    two, three = numbers_drawn(tmp_path, "test_b.py", "test_a.py")[2:]
    assert numbers_drawn(tmp_path, "test_a.py::test_three", "test_a.py::test_two") == [three, two]
    assert numbers_drawn(tmp_path, "test_a.py::test_two") == [two]
