"""Errors in one sentence: what was given, what is needed, what to do."""

from __future__ import annotations

import difflib
import importlib
import inspect
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["check_options", "choose", "optional", "reading", "unknown"]

T = TypeVar("T")

DAMAGE = (
    EOFError,
    OSError,
    ValueError,
    KeyError,
    IndexError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)


def unknown(kind: str, given: object, known: Iterable[str]) -> ValueError:
    """An error for a name that does not exist, with the nearest one that does.

    Example:
        >>> print(unknown("data set", "minst", ["mnist", "imdb"]))
        there is no data set 'minst'; did you mean 'mnist'? There are imdb, mnist
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(given).lower(), names, 1, 0.5)
    hint = f"did you mean {near[0]!r}? There are" if near else "there are"
    return ValueError(f"there is no {kind} {given!r}; {hint} {', '.join(names)}")


def choose(kind: str, given: str, table: Mapping[str, T]) -> T:
    """The entry of a table, or an error with the nearest name."""
    if given not in table:
        raise unknown(kind, given, table)
    return table[given]


def check_options(function: Callable[..., Any], options: Iterable[str], name: str) -> None:
    """Raise if a function has no such keyword arguments."""
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)


def optional(module: str, package: str, purpose: str) -> Any:
    """Import a module that only some users need."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{purpose} needs {package}; run: pip install 'leanbayes[lab]'"
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn every way a broken file can fail into one sentence that names it."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except DAMAGE as error:
        reason = str(error) or type(error).__name__
        raise ValueError(
            f"{path} is truncated or damaged ({reason}); delete it and fetch it again"
        ) from error
