"""Files of a data set: what they are called, what their digests are, where they come from."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal, cast

from leanbayes.lab.data.dataset import Dataset, Task
from leanbayes.lab.data.problems import reading

__all__ = ["File", "Form", "Found", "Source", "State", "assert_intact", "state_of"]

State = Literal["right", "wrong", "unknown"]
BLOCK = 1 << 20


@dataclass(frozen=True)
class File:
    """One file of a data set.

    Args:
        path: below the folder of its form.
        digests: ``"sha256:…"``, ``"md5:…"`` or ``"content-sha256:…"`` (of the unpacked content):
            the file is right if it has any one of them, since packers may compress it anew.
        mirrors: addresses, tried in this order.
        size: in bytes, as downloaded.
    """

    path: str
    digests: tuple[str, ...] = ()
    mirrors: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True)
class Form:
    """One way a data set lies on a disk: all its files, and who reads them.

    Args:
        files: all must be there.
        read: their paths to the content that :attr:`Source.build` takes.
        folders: where they may lie in a data folder; downloads go into the first.
        system: absolute folders where a package of the system puts them.
    """

    files: tuple[File, ...]
    read: Callable[[tuple[Path, ...]], Any]
    folders: tuple[str, ...] = (".",)
    system: tuple[str, ...] = ()

    @property
    def downloadable(self) -> bool:
        """Whether every file has an address."""
        return bool(self.files) and all(file.mirrors for file in self.files)


@dataclass(frozen=True)
class Source:
    """A data set by name: the facts about it, its forms, and how it becomes tensors."""

    name: str
    task: Task
    licence: str
    origin: str
    forms: tuple[Form, ...]
    build: Callable[..., Dataset] = field(repr=False)


@dataclass(frozen=True)
class Found:
    """A form of a data set that is on this machine."""

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
        return sum(path.stat().st_size for path in self.paths if path.is_file())


def digest(path: Path, kind: str) -> str:
    """The digest of a file, ``sha256`` or ``md5``, or of its unpacked ``content-sha256``.

    A file that cannot be unpacked has an empty one.
    """
    inside, _, algorithm = kind.rpartition("-")
    state = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with reading(path), _open(path, unpack=bool(inside)) as file:
            while block := file.read(BLOCK):
                state.update(block)
    except ValueError:
        return ""
    return state.hexdigest()


def _open(path: Path, unpack: bool) -> IO[bytes]:
    if unpack and path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path))
    if unpack and path.suffix == ".xz":
        return cast("IO[bytes]", lzma.open(path))
    return path.open("rb")


@cache
def _listed(sums: Path, changed: float) -> Mapping[str, str]:
    """The lines of a SHA256SUMS file; ``changed`` is its time stamp."""
    pairs = (line.split(maxsplit=1) for line in sums.read_text().splitlines() if line.strip())
    return {name.strip().removeprefix("*").removeprefix("./"): value for value, name in pairs}


def _digest_in_root(path: Path, root: Path) -> str | None:
    sums = root / "SHA256SUMS"
    if not sums.is_file() or not path.is_relative_to(root):
        return None
    listed = _listed(sums, sums.stat().st_mtime)
    return listed.get(path.relative_to(root).as_posix())


def state_of(found: Found, file: File) -> State:
    """Whether a file is what it should be.

    A ``SHA256SUMS`` in the data folder is asked first, then the digests known for this file.
    """
    path = found.folder / file.path
    in_root = _digest_in_root(path, found.root)
    known = file.digests if in_root is None else (f"sha256:{in_root}", *file.digests)
    if not known or not path.is_file():
        return "unknown"
    for kind, expected in (text.split(":") for text in known):
        if digest(path, kind) == expected:
            return "right"
    return "wrong"


def assert_intact(found: Found, name: str) -> None:
    """Raise if a file is not what it should be."""
    for file in found.form.files:
        if state_of(found, file) == "wrong":
            raise ValueError(
                f"{found.folder / file.path} has a wrong checksum; delete it and run: "
                f"leanbayes data fetch {name}"
            )
