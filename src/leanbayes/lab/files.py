"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

__all__ = ["write_json", "write_text"]


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file through a neighbour that replaces it in one step.

    A process that is killed at any moment leaves the old file or the new one.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_text(Path(folder) / "a.txt", "hello").read_text()
        'hello'
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        if error.errno == errno.ENOSPC:
            raise OSError(f"no space is left for {path}; free some and resume the run") from error
        raise
    return path


def write_json(path: str | Path, values: Any) -> Path:
    """Write values as readable JSON, in the same way."""
    return write_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
