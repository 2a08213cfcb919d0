"""The API reference is complete: arguments, results, errors, a guide and a tested example."""

import doctest
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb

DOCS = Path(__file__).parents[1] / "docs"
_SPEC = importlib.util.spec_from_file_location("public_api", DOCS / "_ext" / "public_api.py")
public_api = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(public_api)

OWNERS = public_api.owner_of_objects()
OBJECTS = {
    f"{place}.{name}": thing
    for place in public_api.HOW_TO
    for name, thing in public_api.public_names(pkgutil.resolve_name(place)).items()
    if OWNERS[id(thing)] == place
}
REFUSES = re.compile(r"^\s+(?:raise \w|require\w*\(|_?check_\w+\()", re.MULTILINE)


def sources(thing):
    """What runs when the object is called."""
    called = [thing]
    if isinstance(thing, type):
        called = [vars(thing).get(name) for name in ("__init__", "__post_init__", "__new__")]
    for each in called:
        code = getattr(inspect.unwrap(each), "__code__", None) if each is not None else None
        if code is not None and not code.co_filename.startswith("<"):
            yield inspect.getsource(each)


def missing(path, thing):
    """The sections that the reference of an object lacks."""
    text = inspect.getdoc(thing) or ""
    is_class = isinstance(thing, type)
    if not (is_class or inspect.isroutine(thing)):
        return
    if ">>>" not in text and path not in public_api.examples():
        yield "Example"
    signature = inspect.signature(thing)
    free = (
        inspect.Parameter.VAR_KEYWORD,
        *([inspect.Parameter.VAR_POSITIONAL] if is_class else []),
    )
    named = [p for p in signature.parameters.values() if p.kind not in free]
    is_protocol = getattr(thing, "_is_protocol", False)
    if named and not is_protocol and not re.search(r"^(Args|Attributes):$", text, re.MULTILINE):
        yield "Args"
    gives = signature.return_annotation not in (None, "None")
    if not is_class and gives and not re.search(r"^(Returns|Yields):$", text, re.MULTILINE):
        yield "Returns"
    refuses = any(REFUSES.search(source) for source in sources(thing))
    if refuses and not is_protocol and "\nRaises:\n" not in text:
        yield "Raises"


def test_the_reference_lacks_nothing():
    found = {path: list(missing(path, thing)) for path, thing in OBJECTS.items()}
    assert len(found) > 150
    assert {path: lacks for path, lacks in found.items() if lacks} == {}


def test_what_is_missing_would_be_found():
    def bare(x: int) -> int:
        if x < 0:
            raise ValueError(x)
        return x

    assert list(missing("bare", bare)) == ["Example", "Args", "Returns", "Raises"]


@pytest.mark.parametrize("path", public_api.examples())
def test_an_example_belongs_to_a_name_without_one(path):
    assert path in OBJECTS
    assert ">>>" not in (inspect.getdoc(OBJECTS[path]) or "")


def test_every_name_has_a_page_and_a_guide():
    pages = {p.stem: p.read_text(encoding="utf-8") for p in (DOCS / "reference").glob("*.md")}
    shown = {n for text in pages.values() for n in re.findall(r"{public-names} (\S+)", text)}
    assert shown == set(public_api.HOW_TO)
    assert all(
        re.search(rf"^{name}$", pages["index"], re.MULTILINE) for name in pages.keys() - {"index"}
    )
    assert set(public_api.HOW_TO_OF_NAME) <= set(lb.__all__)
    for path in OBJECTS:
        place, _, name = path.rpartition(".")
        guide = DOCS / "reference" / f"{public_api.how_to(place, name)}.md"
        assert guide.is_file(), path


def _run_examples():
    """Every example of the file, as doctests; those that register run in a process of their own."""
    torch.set_num_threads(1)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for path, body in public_api.examples().items():
        names = {"torch": torch, "nn": nn, "lb": lb}
        runner.run(doctest.DocTestParser().get_doctest(body, names, path, path, 0))
    assert runner.tries > 100
    sys.exit(runner.failures)


def test_the_examples_run(tmp_path):
    done = subprocess.run([sys.executable, __file__], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    _run_examples()
