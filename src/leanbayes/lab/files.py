"""Files that are there whole or not at all, locks, and files that turn out to be broken."""

from __future__ import annotations

import errno
import json
import warnings
from collections.abc import Iterator, Set
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from leanbayes.errors import explained_as
from leanbayes.saving.files import replace_file


class TooLargeError(ValueError):
    """A file that unpacks to more than it should: one sentence that names it."""


_CLEAR = (FileNotFoundError, PermissionError, TooLargeError, ImportError)
"""Errors whose sentence needs nothing more: it names the file, or the package to install."""


def reading(path: Path) -> AbstractContextManager[None]:
    """Turn every way a broken file can fail into one sentence that names it."""
    return explained_as(
        f"{path} is truncated or damaged ({{reason}}); delete it and fetch it again",
        Exception,  # readers raise what they like, also SyntaxError and OverflowError
        when=lambda error: not isinstance(error, _CLEAR),
    )


def write_bytes(path: str | Path, content: bytes | memoryview) -> Path:
    """Write a file, whole or not at all, with the folders above it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return replace_file(path, content)


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file in the same way, in UTF-8."""
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, values: Any) -> Path:
    """Write values as readable JSON, in the same way."""
    return write_text(path, json_text(values))


def json_text(values: Any) -> str:
    """Return values as readable JSON."""
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def read_object(path: Path, keys: Set[str], what: str, again: str) -> dict[str, Any]:
    """Read a JSON object that has these keys."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; {again}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); {again}") from error
    if not isinstance(values, dict) or not keys <= values.keys():
        raise ValueError(f"{path} is not {what}; {again}")
    return values


_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextmanager
def locked(path: Path, taken: str) -> Iterator[None]:
    """Hold the lock of a file, which stays behind empty.

    On a file system without locks, it warns and goes on without.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise BlockingIOError(taken) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(
            f"files cannot be locked in {path.parent} ({error.strerror}); make sure that no second "
            "process works there",
            stacklevel=3,
        )
    try:
        yield
    finally:
        lock.release()
