"""Files that are there whole or not at all, and those that turn out to be broken."""

from __future__ import annotations

import csv
import errno
import json
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leanbayes.saving.files import replace_file

__all__ = [
    "TooLargeError",
    "read_object",
    "reading",
    "told_if_full",
    "write_bytes",
    "write_json",
    "write_text",
]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_DAMAGE = (
    EOFError,
    OSError,
    ValueError,
    KeyError,
    IndexError,
    csv.Error,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    MemoryError,
    RecursionError,
)


class TooLargeError(ValueError):
    """A file that unpacks to more than it should: one sentence that names it."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn every way a broken file can fail into one sentence that names it."""
    try:
        yield
    except (FileNotFoundError, PermissionError, TooLargeError):
        raise
    except _DAMAGE as error:
        reason = str(error) or type(error).__name__
        raise ValueError(
            f"{path} is truncated or damaged ({reason}); delete it and fetch it again"
        ) from error


@contextmanager
def told_if_full(path: Path) -> Iterator[None]:
    """If the disk or a quota is full, say which folder it is and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise OSError(
            f"no space is left in {path.parent} to write {path.name}; free some and go on with "
            "--resume"
        ) from error


def write_bytes(path: str | Path, content: bytes | memoryview) -> Path:
    """Write a file, whole or not at all, with the folders above it; a full disk is told.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_bytes(Path(folder) / "new" / "a.bin", b"hello").read_bytes()
        b'hello'
    """
    path = Path(path)
    with told_if_full(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return replace_file(path, content)


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file in the same way, in UTF-8."""
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, values: Any) -> Path:
    """Write values as readable JSON, in the same way."""
    return write_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def read_object(path: Path, keys: Set[str], what: str, again: str) -> dict[str, Any]:
    """Read a JSON object that has these keys.

    Args:
        path: the file.
        keys: what the object cannot do without.
        what: what such a file is, for the sentence about one that is something else.
        again: how to get a good one.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; {again}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); {again}") from error
    if not isinstance(values, dict) or not keys <= values.keys():
        raise ValueError(f"{path} is not {what}; {again}")
    return values
