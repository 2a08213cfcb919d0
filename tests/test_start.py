"""Importing leanbayes leaves Python's garbage collector as it was."""

import gc
import subprocess
import sys

import pytest

from leanbayes._start import without_collector


@pytest.mark.parametrize("before", ["enable", "disable"])
def test_an_import_leaves_the_collector_as_it_was(before):
    code = f"import gc; gc.{before}(); import leanbayes; print(gc.isenabled())"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == str(before == "enable")


def test_an_import_that_fails_leaves_it_as_it_was():
    def fail():
        with without_collector():
            assert not gc.isenabled()
            raise ImportError

    assert gc.isenabled()
    with pytest.raises(ImportError):
        fail()
    assert gc.isenabled()
