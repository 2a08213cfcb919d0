"""Downloads: checked files from the first mirror that answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leanbayes.lab.data.extras import extra
from leanbayes.lab.data.files import Copy, File
from leanbayes.lab.data.search import cache_folder
from leanbayes.lab.data.sources import Source

__all__ = ["download"]


def download(source: Source, *, downloader: Any = None) -> Copy:
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
