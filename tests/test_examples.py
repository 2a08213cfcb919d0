"""Examples of objects that are not public: doctests, each run in the names of its module."""

import doctest
import pkgutil
import sys
from pathlib import Path

import pytest

TEXT = Path(__file__).with_name("examples.txt").read_text(encoding="utf-8")
EXAMPLES = dict(block.rstrip("\n").split("\n", 1) for block in TEXT.split("\n\n"))


@pytest.mark.parametrize("path", EXAMPLES)
def test_an_example(path, doctest_namespace, capsys):
    thing = pkgutil.resolve_name(path)
    module = sys.modules[getattr(thing, "__module__", None) or thing.fget.__module__]
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(
        doctest.DocTestParser().get_doctest(
            EXAMPLES[path], doctest_namespace | vars(module), path, path, 0
        )
    )
    assert runner.tries
    assert not runner.failures, capsys.readouterr().out
