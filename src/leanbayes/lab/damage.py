"""Files that turn out to be broken while they are read."""

from __future__ import annotations

import csv
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["reading"]

DAMAGE = (
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
)


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
