"""Downloads: checked files from the first mirror that answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leanbayes.lab.data.files import File, Found, Source
from leanbayes.lab.data.problems import optional
from leanbayes.lab.data.search import cache_folder

__all__ = ["download"]


def download(source: Source, *, downloader: Any = None) -> Found:
    """Download a data set into the cache, each file checked before it is put there.

    Args:
        source: what to download; its forms are tried in their order.
        downloader: as :func:`pooch.retrieve` takes it; None chooses by the address.
    """
    forms = [form for form in source.forms if form.downloadable]
    if not forms:
        raise FileNotFoundError(f"{source.name} has no address to download it from")
    failures: list[str] = []
    for form in forms:
        found = Found(form, cache_folder(), cache_folder() / form.folders[0])
        if all(_download_file(file, found.folder, downloader, failures) for file in form.files):
            return found
    raise ConnectionError(
        f"{source.name} could not be downloaded ({'; '.join(failures)}); fetch the file another "
        f"way and put it into {cache_folder() / forms[0].folders[0]}"
    )


def _known_hash(file: File) -> str:
    """The digest of the file as it comes; that of the content where the two are the same."""
    own = [text for text in file.digests if not text.startswith("content-")]
    return own[0] if own else file.digests[0].removeprefix("content-")


def _download_file(file: File, folder: Path, downloader: Any, failures: list[str]) -> bool:
    pooch = optional("pooch", "pooch", "downloading data")
    for address in file.mirrors:
        try:
            pooch.retrieve(
                address, _known_hash(file), fname=file.path, path=folder, downloader=downloader
            )
        except (OSError, ValueError) as error:  # no answer, or not the file that was asked for
            failures.append(f"{address}: {_first_sentence(error)}")
        else:
            return True
    return False


def _first_sentence(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if len(text) < 120 else f"{text[:117]}..."
