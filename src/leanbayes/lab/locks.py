"""One process at a time in a folder, by a lock that dies with its process."""

import errno
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextmanager
def locked(path: Path, taken: str) -> Iterator[None]:
    """Hold the lock of a file, which stays behind empty.

    On a file system without locks, it warns and goes on without.

    Args:
        path: the file of the lock, in a folder that exists.
        taken: the message for a second process, which is refused.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "lock"
        ...     with locked(file, "in use"), locked(file, "in use"):
        ...         pass
        Traceback (most recent call last):
        BlockingIOError: in use
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
