"""Files of a data set: what they are called, what their digests are, where they come from."""

import bz2
import gzip
import hashlib
import io
import lzma
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from leanbayes.lab.files import TooLargeError, reading

UNPACKED = 2**28
"""What every packed file may unpack to, in bytes …"""

RATIO = 100
"""… and how many times its own size, if that is more; the sets by name stay below 60."""

_OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".tgz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}

ChecksumState = Literal["right", "wrong", "unknown"]


@dataclass(frozen=True)
class File:
    """One file of a data set.

    Args:
        path: below the folder of its form.
        digests: ``"sha256:…"``, ``"md5:…"`` or ``"content-sha256:…"`` (of the unpacked content):
            the file is right if it has any one of them, since packers may recompress it.
        mirrors: addresses, tried in this order.
        size: size in bytes, as downloaded.
    """

    path: str
    digests: tuple[str, ...] = ()
    mirrors: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True)
class Form:
    """One way a data set lies on a disk: all its files, and who reads them."""

    files: tuple[File, ...]
    read: Callable[[tuple[Path, ...]], Any]
    folders: tuple[str, ...] = (".",)
    system: tuple[str, ...] = ()

    @property
    def downloadable(self) -> bool:
        """Whether every file has an address."""
        return all(file.mirrors for file in self.files)


@dataclass(frozen=True)
class Copy:
    """A form of a data set in a folder below a root, which may hold a ``SHA256SUMS``."""

    form: Form
    root: Path
    folder: Path

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the files are."""
        return tuple(self.folder / file.path for file in self.form.files)

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        files = (path.rglob("*") if path.is_dir() else [path] for path in self.paths)
        return sum(file.stat().st_size for part in files for file in part if file.is_file())

    def states(self) -> dict[Path, ChecksumState]:
        """Return whether each file is what it should be; of a folder, each that is listed."""
        listed = _listed(self.root / "SHA256SUMS")
        states: dict[Path, ChecksumState] = {}
        for path, file in zip(self.paths, self.form.files, strict=True):
            name = path.relative_to(self.root).as_posix()
            inside = [inner for inner in listed if inner.startswith(f"{name}/")]
            for inner in inside:
                states[self.root / inner] = _state(self.root / inner, File(inner), listed[inner])
            if not inside:
                states[path] = _state(path, file, listed.get(name))
        return states

    def assert_intact(self, name: str) -> None:
        """Raise if a file is not what it should be."""
        for path, state in self.states().items():
            if state == "wrong":
                again = f"delete it and run: leanbayes data fetch {name}"
                again = again if self.form.downloadable else "put the right file in its place"
                raise ValueError(f"{path} has a wrong checksum; {again}")


def opened(path: Path) -> io.BufferedReader:
    """Open a file for bytes; unpack a ``.gz``, ``.tgz``, ``.bz2`` or ``.xz``."""
    if path.suffix not in _OPENERS:
        return path.open("rb")
    return io.BufferedReader(_Unpacked(path), buffer_size=2**20)


def check_unpacked(path: Path, size: int) -> None:
    """Raise if a file unpacks to more than any honest one does."""
    limit = max(UNPACKED, RATIO * path.stat().st_size)
    if size > limit:
        raise TooLargeError(
            f"{path} unpacks to more than {limit // 10**6} MB, which is {RATIO} times its size or "
            "more; if you trust it, unpack it and give what is inside"
        )


class _Unpacked(io.RawIOBase):
    """The content of a packed file, as far as it may go."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, 0
        self._file = _OPENERS[path.suffix](path, "rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer)
        self._size += count
        check_unpacked(self._path, self._size)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _state(path: Path, file: File, listed: str | None) -> ChecksumState:
    """The digest listed in the data folder is tried first, then those known for this file."""
    known = file.digests if listed is None else (f"sha256:{listed}", *file.digests)
    if not known or not path.is_file():
        return "unknown"
    digests = (text.split(":") for text in known)
    return "right" if any(_digest(path, kind) == value for kind, value in digests) else "wrong"


def _listed(sums: Path) -> Mapping[str, str]:
    """Return digests by file name, from a file that ``sha256sum`` wrote."""
    lines = sums.read_text().splitlines() if sums.is_file() else ()
    pairs = (line.split(maxsplit=1) for line in lines if line.strip())
    return {name.strip().removeprefix("*").removeprefix("./"): value for value, name in pairs}


def _digest(path: Path, kind: str) -> str:
    """Return a digest of a file, or of its content unpacked; empty if it cannot be unpacked."""
    inside, _, algorithm = kind.rpartition("-")
    new = partial(hashlib.new, algorithm, usedforsecurity=False)
    try:
        with reading(path), opened(path) if inside else path.open("rb") as file:
            return hashlib.file_digest(file, new).hexdigest()
    except ValueError:
        return ""
