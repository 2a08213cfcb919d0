"""Readers of archives and of images that lie below each other in a file."""

import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from leanbayes.lab.data.extras import extra
from leanbayes.lab.data.files import check_unpacked, opened
from leanbayes.lab.data.images import Bytes, read_bytes
from leanbayes.lab.files import reading

COLUMN = 32 * 100_000
"""The highest column of images, in pixels."""


def read_column_of_images(path: Path) -> Bytes:
    """32 × 32 RGB images ``[examples, 3, 32, 32]`` that lie below each other in an image file."""
    image = extra("PIL.Image", "pillow", "reading CIFAR from image files")
    content = read_bytes(path)
    with reading(path):
        try:
            column = image.open(io.BytesIO(content))
        except image.DecompressionBombError as error:
            raise ValueError(str(error)) from error
        if column.width != 32 or column.height > COLUMN:
            raise ValueError(f"an image of {column.size} pixels is not a column of images")
        pixels = np.asarray(column.convert("RGB"))
        return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def archive_members(path: Path, folders: Iterable[str] = ("",)) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files in an archive or a folder, in these inner folders."""
    wanted = tuple(folders)
    with reading(path):
        if path.is_dir():
            for inner in wanted:
                for file in sorted((path / inner).rglob("*")):
                    if file.is_file():
                        yield file.relative_to(path).as_posix(), file.read_bytes()
            return
        unpacked = 0
        with opened(path) as content, tarfile.open(fileobj=content, mode="r|") as archive:
            for member in archive:
                inside = member.name.removeprefix("./").partition("/")[2]
                unpacked += member.size
                check_unpacked(path, unpacked)
                if member.isfile() and inside.startswith(wanted):
                    stream = archive.extractfile(member)
                    assert stream is not None
                    yield inside, stream.read()


def parts(paths: Iterable[Path]) -> dict[str, bytes]:
    """Return contents by file name, of files or of the one archive that holds them all."""
    contents: dict[str, bytes] = {}
    for path in paths:
        if path.name.endswith(".tar.gz"):
            contents |= {name.rpartition("/")[2]: part for name, part in archive_members(path)}
        else:
            contents[path.name] = read_bytes(path)
    return contents
