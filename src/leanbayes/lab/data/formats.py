"""Readers of the canonical file formats: bytes in, arrays out."""

import io
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leanbayes.lab.data.extras import extra
from leanbayes.lab.data.files import check_unpacked, opened
from leanbayes.lab.files import reading

Bytes = npt.NDArray[np.uint8]
AMAT_ROW = 2 * 784
COLUMN = 32 * 100_000
"""The highest column of images, in pixels."""


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is called ``.gz`` or ``.xz``."""
    with reading(path), opened(path) as file:
        return bytes(file.read())


def read_idx(path: Path) -> Bytes:
    """An array of bytes in the idx format of MNIST, packed or not."""
    content = read_bytes(path)
    with reading(path):
        zero, kind, dimensions = struct.unpack_from(">HBB", content)
        if zero or kind != 8:
            raise ValueError("it is not an idx file of bytes")
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
        return values.reshape(shape)


def read_amat(path: Path) -> Bytes:
    """Binary images ``[examples, 28, 28]`` from text: 784 characters 0 or 1 a line."""
    content = np.frombuffer(read_bytes(path), np.uint8)
    with reading(path):
        rows = content.reshape(-1, AMAT_ROW)
        pixels = rows[:, 0::2] - ord("0")
        spaced = (rows[:, 1:-1:2] == ord(" ")).all() and (rows[:, -1] == ord("\n")).all()
        if not len(rows) or pixels.max() > 1 or not spaced:
            raise ValueError("a line is not 784 characters 0 or 1 with spaces between them")
        return pixels.reshape(-1, 28, 28)


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


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an NPZ file, by name."""
    with reading(path):
        with zipfile.ZipFile(path) as archive:
            check_unpacked(path, sum(member.file_size for member in archive.infolist()))
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}


def parts(paths: Iterable[Path]) -> dict[str, bytes]:
    """Contents by file name, of files or of the one archive that holds them all."""
    contents: dict[str, bytes] = {}
    for path in paths:
        if path.name.endswith(".tar.gz"):
            contents |= {name.rpartition("/")[2]: part for name, part in archive_members(path)}
        else:
            contents[path.name] = read_bytes(path)
    return contents
