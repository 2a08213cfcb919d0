"""Labeled images become a data set, from idx files or arrays."""

import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leanbayes.lab.data.dataset import Dataset, Examples, reordered, scaled_dataset, split_last
from leanbayes.lab.data.files import check_unpacked, opened
from leanbayes.lab.files import reading

Bytes = npt.NDArray[np.uint8]


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is called ``.gz`` or ``.xz``."""
    with reading(path), opened(path) as file:
        return bytes(file.read())


def read_idx(path: Path) -> Bytes:
    """Return an array of bytes in the idx format of MNIST, packed or not."""
    content = read_bytes(path)
    with reading(path):
        zero, kind, dimensions = struct.unpack_from(">HBB", content)
        if zero or kind != 8:
            raise ValueError("it is not an idx file of bytes")
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
        return values.reshape(shape)


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an NPZ file, by name."""
    with reading(path):
        with zipfile.ZipFile(path) as archive:
            check_unpacked(path, sum(member.file_size for member in archive.infolist()))
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        if odd := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"its member {odd[0]!r} is not an array")
        return arrays


ORDER_SEED = 0
"""Of the one permutation of each part that files sorted by class need before it is cut."""


@dataclass(frozen=True)
class Images:
    """Pixels ``[examples, channels, height, width]`` from 0 to ``peak``, and what a reader knows.

    Without labels, images are their own targets; ``sorted`` images come class by class, for
    training and for test.
    """

    train: Bytes
    test: Bytes
    train_labels: npt.NDArray[np.int64] | None = None
    test_labels: npt.NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()
    peak: int = 255
    sorted: bool = False
    validation: Bytes | None = None
    note: str = ""


def build_images(content: Images, *, scaling: str = "unit", validation: int = 10_000) -> Dataset:
    """Return a data set of images."""
    train = Examples(_tensor(content.train), _labels(content.train_labels))
    test = Examples(_tensor(content.test), _labels(content.test_labels))
    notes = [content.note] if content.note else []
    if content.sorted:
        train, test = reordered(train, ORDER_SEED), reordered(test, ORDER_SEED)
        order = f"numpy RandomState({ORDER_SEED})"
        notes.append(f"files sorted by class, so training and test images permuted once ({order})")
    if content.validation is not None:
        held_out: Examples | None = Examples(_tensor(content.validation))
        notes.append("validation images as published")
    else:
        train, held_out = split_last(train, validation)
        if validation:
            notes.append(f"last {validation} training images for validation")
    return scaled_dataset(
        train,
        held_out,
        test,
        scaling=scaling,
        peak=content.peak,
        preprocessing=notes,
        classes=content.classes,
    )


def _tensor(pixels: Bytes) -> Tensor:
    return torch.from_numpy(np.require(pixels, requirements=("C", "W")))


def _labels(labels: npt.NDArray[np.int64] | None) -> Tensor | None:
    return None if labels is None else torch.from_numpy(labels.astype(np.int64))
