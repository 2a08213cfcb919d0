"""One process at a time in a folder, by a lock that dies with its process."""

from __future__ import annotations

import errno
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


__all__ = ["locked"]

_TAKEN = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
_PAUSE = 0.02


@contextmanager
def locked(path: Path, taken: str | None = None) -> Iterator[None]:
    """Hold the lock of a file, which stays behind empty.

    On a file system that has no locks, it says so and goes on without.

    Args:
        path: the file of the lock, in a folder that exists.
        taken: what to say to a second process, which is refused; it waits, if not given.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with locked(Path(folder) / "lock"), locked(Path(folder) / "lock", "in use"):
        ...         pass
        Traceback (most recent call last):
        BlockingIOError: in use
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while not _try(descriptor, path):
            if taken is not None:
                raise BlockingIOError(taken)
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _try(descriptor: int, path: Path) -> bool:
    """Whether the lock is ours, or there are none."""
    try:
        _lock(descriptor)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        warnings.warn(
            f"{path.parent} lies where files cannot be locked ({error.strerror}); see to it that "
            "no second process works there",
            stacklevel=4,
        )
    return True
