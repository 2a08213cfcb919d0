"""The tracer counts files, hops and calls, and its table is that of the page."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from research.measuring import tracer
from research.measuring.tracer import Count, count_calls

ROOT = Path(__file__).parents[3]


@pytest.fixture
def two_files(tmp_path, monkeypatch):
    """``first.outer`` calls ``second.inner`` twice, and itself a function beside it."""
    (tmp_path / "traced").mkdir()
    (tmp_path / "traced" / "__init__.py").touch()
    (tmp_path / "traced" / "second.py").write_text("def inner():\n    return sum([1])\n")
    (tmp_path / "traced" / "first.py").write_text(
        "from traced.second import inner\n\n"
        "def beside():\n    return 0\n\n"
        "def outer():\n    return inner() + beside() + inner() + inner()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("traced.first")
    for name in ("traced", "traced.first", "traced.second"):
        sys.modules.pop(name, None)


def test_files_hops_and_calls_of_a_known_package(two_files, tmp_path):
    # outer, inner, beside, inner, inner: the last two stay in one file
    assert count_calls(two_files.outer, tmp_path / "traced") == Count(files=2, hops=3, calls=5)
    assert count_calls(two_files.outer, tmp_path / "elsewhere") == Count(0, 0, 0)


def test_the_profiler_of_others_is_given_back(two_files, tmp_path):
    def other(*_):
        return None

    sys.setprofile(other)
    try:
        with pytest.raises(ZeroDivisionError):
            count_calls(lambda: 1 / 0, tmp_path)
        assert sys.getprofile() is other
    finally:
        sys.setprofile(None)


def test_every_operation_is_traced_the_same_way_twice():
    root = tracer.Path(tracer.lb.__file__).parent
    for name, work in tracer.operations().items():
        work()
        first, again = count_calls(work, root), count_calls(work, root)
        assert first == again
        assert 0 < first.files <= first.hops + 1 <= first.calls, name


def test_the_page_has_what_was_traced():
    page = tracer.PAGE.read_text(encoding="utf-8")
    assert f"<!-- tracer: all -->\n{tracer.table()}\n<!-- end -->" in page, (
        "run python -m research page trace"
    )


@pytest.fixture(scope="module")
def counted():
    """Counts of a process of its own: what other tests have registered or cached is not in it."""
    code = """
import json
from research.measuring import tracer
counts = {}
for name, work in tracer.operations().items():
    work()
    found = tracer.count_calls(work, tracer.Path(tracer.lb.__file__).parent)
    counts[name] = [found.files, found.hops]
print(json.dumps(counts))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "files", "hops"),
    [("forward", 9, 45), ("kl", 9, 30), ("convert", 19, 150), ("predict", 20, 191)],
)
def test_the_way_through_the_code_gets_no_longer(counted, name, files, hops):
    assert counted[name][0] <= files
    assert counted[name][1] <= hops
