"""Data sets by name: load, list, fetch and check them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanbayes.lab.data import cifar, imdb, mnist, uci
from leanbayes.lab.data.dataset import Dataset, Task
from leanbayes.lab.data.fetch import download as download_source
from leanbayes.lab.data.files import Found, Source, State, assert_intact, state_of
from leanbayes.lab.data.problems import check_options, unknown
from leanbayes.lab.data.search import find, missing
from leanbayes.lab.data.user import load_csv, load_npz

__all__ = ["Entry", "FileState", "check", "fetch", "listing", "load", "names"]

SOURCES: dict[str, Source] = {
    source.name: source for source in (*mnist.SOURCES, *cifar.SOURCES, *imdb.SOURCES, *uci.SOURCES)
}
OWN: dict[str, Callable[..., Dataset]] = {".csv": load_csv, ".npz": load_npz}


@dataclass(frozen=True)
class Entry:
    """What there is to say of a data set on this machine.

    Args:
        name: what :func:`load` takes.
        task: what is to be learnt.
        licence: what it may be used under.
        source: as one would cite it.
        where: the folder it was found in; None if it is inside a Python package or absent.
        size: bytes on the disk, or to be downloaded; 0 where neither is known.
        state: of its checksums, or why there are none.
    """

    name: str
    task: Task
    licence: str
    source: str
    where: Path | None
    size: int
    state: State | str


@dataclass(frozen=True)
class FileState:
    """Whether one file of a data set is what it should be."""

    name: str
    path: Path
    state: State


def names() -> tuple[str, ...]:
    """The data sets there are.

    Example:
        >>> names()[:3]
        ('digits', 'mnist', 'fashion-mnist')
    """
    return tuple(SOURCES)


def load(name: str, *, download: bool = True, **options: Any) -> Dataset:
    """A data set by its name, or from your own ``.csv`` or ``.npz`` file.

    Args:
        name: one of :func:`names`, or a path.
        download: fetch it if it is not on this machine.
        options: what the data set allows, for instance ``scaling`` and ``validation`` for images.

    Example:
        >>> load("digits", scaling="symmetric")
        Dataset(digits: train=1257, validation=180, test=360, inputs (1, 8, 8), 10 classes)
    """
    path = Path(name)
    if path.suffix.lower() in OWN:
        reader = OWN[path.suffix.lower()]
        check_options(reader, options, path.name)
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist")
        return reader(path, **options)
    source = _source(name)
    check_options(source.build, options, source.name)
    found = find(source)
    if found is None:
        if not download:
            raise missing(source)
        found = download_source(source)
    assert_intact(found, source.name)
    return source.build(found.form.read(found.paths), source, **options)


def fetch(name: str, *, downloader: Any = None) -> Found:
    """Make sure that a data set is on this machine, whole; download it if it is not.

    Args:
        name: one of :func:`names`.
        downloader: as :func:`pooch.retrieve` takes it.
    """
    source = _source(name)
    found = find(source) or download_source(source, downloader=downloader)
    assert_intact(found, source.name)
    return found


def check(name: str | None = None) -> tuple[FileState, ...]:
    """The state of every file of one data set, or of all that are on this machine."""
    states = []
    for source in SOURCES.values() if name is None else (_source(name),):
        found = find(source)
        if found is None:
            if name is not None:
                raise missing(source)
            continue
        states += [
            FileState(source.name, found.folder / file.path, state_of(found, file))
            for file in found.form.files
        ]
    return tuple(states)


def listing(*, checksums: bool = False) -> tuple[Entry, ...]:
    """Every data set: where it lies, its licence, its size, and with ``checksums`` their state."""
    return tuple(_entry(source, checksums) for source in SOURCES.values())


def _entry(source: Source, checksums: bool) -> Entry:
    found = find(source)
    where = found.folder if found is not None and found.form.files else None
    if found is None:
        size = next(
            (sum(f.size for f in form.files) for form in source.forms if form.downloadable), 0
        )
    else:
        size = found.size
    return Entry(
        source.name,
        source.task,
        source.licence,
        source.origin,
        where,
        size,
        _state(source, found, checksums),
    )


def _state(source: Source, found: Found | None, checksums: bool) -> State | str:
    if found is None:
        return "absent"
    if not found.form.files:
        return "embedded"
    if not checksums:
        return "not checked"
    states = {state_of(found, file) for file in found.form.files}
    return next(state for state in ("wrong", "unknown", "right") if state in states)


def _source(name: str) -> Source:
    """A source by its name, however it is spelt: ``CIFAR-10`` is ``cifar10``."""
    plain = {_plain(known): source for known, source in SOURCES.items()}
    if _plain(name) not in plain:
        raise unknown("data set", name, SOURCES)
    return plain[_plain(name)]


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
