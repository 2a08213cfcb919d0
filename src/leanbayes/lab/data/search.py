"""Search for data sets in your folders, the system's and the cache; downloads fill the cache."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leanbayes.lab.data.extras import extra
from leanbayes.lab.data.files import Copy, File
from leanbayes.lab.data.sources import Source

VARIABLE = "LEANBAYES_DATA"


def own_folders() -> tuple[Path, ...]:
    """Return the folders that ``LEANBAYES_DATA`` names: one, or several as in ``PATH``."""
    named = [Path(text) for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text]
    for folder in named:
        if not folder.expanduser().is_dir():
            raise FileNotFoundError(
                f"{VARIABLE} names {folder}, which is not a folder; correct it or unset it"
            )
    return tuple(folder.expanduser().resolve() for folder in named)


def cache_folder() -> Path:
    """Return the folder of downloads."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "leanbayes"


def candidates(source: Source) -> Iterator[Copy]:
    """Everywhere a data set may lie, in the order of search; it need not be there."""
    for root in own_folders():
        yield from _in(source, root)
    for form in source.forms:
        yield from (Copy(form, Path(folder), Path(folder)) for folder in form.system)
    yield from _in(source, cache_folder())


def _in(source: Source, root: Path) -> Iterator[Copy]:
    return (Copy(form, root, root / name) for form in source.forms for name in form.folders)


def find(source: Source) -> Copy | None:
    """Return the first copy that has all its files."""
    return next((c for c in candidates(source) if all(p.exists() for p in c.paths)), None)


def missing(source: Source) -> FileNotFoundError:
    """Return an error that says where a data set was looked for, and what to do."""
    tried = list(candidates(source))
    roots = ", ".join(dict.fromkeys(str(copy.root) for copy in tried))
    wanted = " or ".join(
        dict.fromkeys(Path(c.form.folders[0], c.form.files[0].path).as_posix() for c in tried)
    )
    begun = next((copy for copy in tried if any(path.exists() for path in copy.paths)), None)
    absent = () if begun is None else [path for path in begun.paths if not path.exists()]
    lack = f", and {absent[0]} is missing" if absent else ""
    return FileNotFoundError(
        f"{source.name} was not found in {roots}, where {wanted} would begin it{lack}; put it "
        f"there, name its folder in {VARIABLE}, or run: leanbayes data fetch {source.name}"
    )


def download(source: Source, *, downloader: Any = None) -> Copy:
    """Download a data set into the cache, each file checked before it is put there."""
    forms = [form for form in source.forms if form.downloadable]
    if not forms:
        first = source.forms[0]
        wanted = Path(first.folders[0], first.files[0].path).as_posix()
        raise FileNotFoundError(
            f"{source.name} has no address to download it from; put {wanted} into a folder, and "
            f"name that in {VARIABLE}"
        )
    failures: list[str] = []
    for form in forms:
        copy = Copy(form, cache_folder(), cache_folder() / form.folders[0])
        if all(_download_file(file, copy.folder, downloader, failures) for file in form.files):
            return copy
    raise ConnectionError(
        f"{source.name} could not be downloaded ({'; '.join(failures)}); fetch the file another "
        f"way and put it into {cache_folder() / forms[0].folders[0]}"
    )


def _download_file(file: File, folder: Path, downloader: Any, failures: list[str]) -> bool:
    """Whether a mirror gave the file; a digest of the content is that of a file not packed."""
    pooch = extra("pooch", "pooch", "downloading data")
    digest = min(file.digests, key=lambda text: text.startswith("content-"), default=None)
    for address in file.mirrors:
        try:
            pooch.retrieve(
                address,
                digest and digest.removeprefix("content-"),
                fname=file.path,
                path=folder,
                downloader=downloader,
            )
        except (OSError, ValueError) as error:  # no answer, or not the file that was asked for
            reason = (str(error) or type(error).__name__).splitlines()[0]
            failures.append(f"{address}: {reason[:120]}")
        else:
            return True
    return False
