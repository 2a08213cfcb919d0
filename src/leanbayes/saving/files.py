"""Files that are there whole or not at all, also after a kill or a power cut."""

import errno
import os
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from leanbayes.errors import explained_as

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(OSError):
    """A full disk or quota: one sentence that names the folder and the file."""


def naming_full_disk(path: str | os.PathLike[str]) -> AbstractContextManager[None]:
    """Name the file that is being written, and its folder, if the disk or a quota is full."""
    path = Path(path)
    return explained_as(
        f"no space is left in {path.parent} to write {path.name}; free some",
        OSError,
        when=lambda error: isinstance(error, OSError) and error.errno in _FULL,
        into=DiskFullError,
    )


def replace_file(path: str | os.PathLike[str], content: bytes | memoryview) -> Path:
    """Write a file through a neighbor that replaces it in one step, and see it onto the disk.

    A process that is killed at any moment, or a full disk, leaves the old file or the new one.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with naming_full_disk(path), open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)
    return path


def remove_partial_files(folder: str | os.PathLike[str]) -> None:
    """Remove what processes that were killed while they wrote have left in a folder."""
    own = f".{os.getpid()}.partial"
    for orphan in Path(folder).glob("*.partial"):
        if not orphan.name.endswith(own):
            orphan.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """See the new name onto the disk; where folders cannot be synced, the system does it later."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
