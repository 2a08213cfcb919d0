"""Data sets by name: load, list, fetch and check them."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leanbayes.errors import unknown
from leanbayes.lab.data import search
from leanbayes.lab.data.dataset import Dataset, Task
from leanbayes.lab.data.files import ChecksumState, Copy
from leanbayes.lab.data.sources import SOURCES, Source
from leanbayes.lab.data.user import load_csv, load_npz

from leanbayes.lab.data import mnist  # noqa: F401  # isort: skip

OWN: dict[str, Callable[..., Dataset]] = {".csv": load_csv, ".npz": load_npz}


@dataclass(frozen=True)
class Entry:
    """What there is to say of a data set on this machine."""

    name: str
    task: Task
    license: str
    source: str
    where: Path | None
    size: int
    state: ChecksumState | str

    @property
    def place(self) -> str:
        """Its folder, or how to get it."""
        if self.where is not None:
            return str(self.where)
        if self.state == "embedded":
            return "comes with scikit-learn"
        if self.size:
            return f"not here; leanbayes data fetch {self.name}"
        return f"not here and not downloadable; put it into a folder named in {search.VARIABLE}"


@dataclass(frozen=True)
class FileState:
    """Whether one file of a data set is what it should be."""

    name: str
    path: Path
    state: ChecksumState


def names() -> tuple[str, ...]:
    """Return the data sets there are."""
    return tuple(SOURCES)


def load_dataset(name: str, *, download: bool = True, **options: Any) -> Dataset:
    """Return a data set by its name, or from your own ``.csv`` or ``.npz`` file.

    Args:
        name: one of :func:`names`, or a path.
        download: fetch it if it is not on this machine.
        options: options of the data set, such as ``scaling`` and ``validation`` for images.
    """
    path = Path(name)
    if path.suffix.lower() in OWN:
        reader = OWN[path.suffix.lower()]
        _check_options(reader, options, path.name)
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist")
        return reader(path, **options)
    source = _source(name)
    _check_options(source.build, options, source.name)
    copy = _copy(source, download)
    contents = () if copy is None else (copy.form.read(copy.paths),)
    return replace(
        source.build(*contents, **options),
        name=source.name,
        task=source.task,
        license=source.license,
        source=source.origin,
    )


def fetch(name: str, *, downloader: Any = None) -> Copy | None:
    """Make sure that a data set is complete on this machine; download it if it is not."""
    return _copy(_source(name), download=True, downloader=downloader)


def check(name: str | None = None) -> tuple[FileState, ...]:
    """Return the state of every file of one data set, or of all that are on this machine."""
    states = []
    for source in SOURCES.values() if name is None else (_source(name),):
        copy = search.find(source)
        if copy is not None:
            states += [FileState(source.name, *state) for state in copy.states().items()]
        elif name is not None and source.forms:
            raise search.missing(source)
    return tuple(states)


def listing(*, checksums: bool = False) -> tuple[Entry, ...]:
    """Return place, license and size of every data set, and with ``checksums`` their state."""
    return tuple(_entry(source, checksums) for source in SOURCES.values())


def _check_options(function: Callable[..., Any], options: Iterable[str], name: str) -> None:
    """Raise if a function has no such keyword arguments."""
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)


def _copy(source: Source, download: bool, downloader: Any = None) -> Copy | None:
    """The files of a data set, if it has any, found or downloaded, and what they should be."""
    if not source.forms:
        return None
    copy = search.find(source)
    if copy is None and not download:
        raise search.missing(source)
    copy = copy or search.download(source, downloader=downloader)
    copy.assert_intact(source.name)
    return copy


def _entry(source: Source, checksums: bool) -> Entry:
    facts = (source.name, source.task, source.license, source.origin)
    copy = search.find(source)
    if copy is None:
        sizes = (sum(f.size for f in form.files) for form in source.forms if form.downloadable)
        return Entry(*facts, None, next(sizes, 0), "absent" if source.forms else "embedded")
    state = "not checked"
    if checksums:
        states = set(copy.states().values())
        state = next(state for state in ("wrong", "unknown", "right") if state in states)
    return Entry(*facts, copy.folder, copy.size, state)


def _source(name: str) -> Source:
    """Return a source by its name, however it is spelled: ``CIFAR-10`` is ``cifar10``."""
    spelled = {_plain(known): known for known in SOURCES}
    return SOURCES[spelled.get(_plain(name), name)]


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
