"""Freed memory stays with the process, where the C library can be told so."""

import ctypes
import os
import platform

import pytest

from leanbayes.kernels import memory


@pytest.fixture
def keep_memory(monkeypatch):
    """The function as a new process finds it."""
    for name in memory._SET_BY_USERS:
        monkeypatch.delenv(name, raising=False)
    memory.keep_memory.cache_clear()
    yield memory.keep_memory
    memory.keep_memory.cache_clear()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_glibc_is_told_once(keep_memory, monkeypatch):
    assert keep_memory()
    monkeypatch.setattr(ctypes, "CDLL", None)  # a second call does not look
    assert keep_memory()


@pytest.mark.parametrize("name", memory._SET_BY_USERS)
def test_settings_of_users_are_respected(name, keep_memory, monkeypatch):
    monkeypatch.setitem(os.environ, name, "1")
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert not keep_memory()


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_other_libraries_are_left_alone(error, keep_memory, monkeypatch):
    def none(name):
        raise error("no such library")

    monkeypatch.setattr(ctypes, "CDLL", none)
    assert not keep_memory()
