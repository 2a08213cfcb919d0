"""The suite itself: tests mirror the package, and share helpers only through tests/support."""

import ast
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
