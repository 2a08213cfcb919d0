"""CIFAR-10 and CIFAR-100: the authors' binary version, and lossless images that git can hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leanbayes.errors import choose
from leanbayes.lab.damage import reading
from leanbayes.lab.data.dataset import Dataset
from leanbayes.lab.data.files import File, Form
from leanbayes.lab.data.formats import Bytes, parts, read_bytes, read_column_of_images
from leanbayes.lab.data.images import Images, build_images
from leanbayes.lab.data.sources import register_dataset
from leanbayes.lab.tables import read_table

__all__ = ["Labelled"]

CLASSES: tuple[str, ...] = ("airplane", "automobile", "bird", "cat", "deer")
CLASSES += ("dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Labelled:
    """Images with one or two labels each: of CIFAR-100, the fine and the coarse one.

    Args:
        train: pixels ``[examples, 3, 32, 32]`` and labels ``[examples, kinds]``.
        test: the same.
        classes: names of the classes, for each kind of label.
        sorted: whether the training images come class by class.
    """

    train: tuple[Bytes, Labels]
    test: tuple[Bytes, Labels]
    classes: tuple[tuple[str, ...], ...]
    sorted: bool = False

    def __post_init__(self) -> None:
        for images, labels in (self.train, self.test):
            if len(images) != len(labels):
                raise ValueError(f"there are {len(images)} images and {len(labels)} labels")

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


def _records(content: bytes, kinds: int) -> tuple[Bytes, Labels]:
    """The binary version: label bytes, the coarse one first, then 3072 of pixels, an image."""
    rows = np.frombuffer(content, np.uint8).reshape(-1, kinds + PIXELS)
    labels = rows[:, :kinds].astype(np.int64)
    return np.ascontiguousarray(rows[:, kinds:]).reshape(-1, 3, 32, 32), labels[:, ::-1]


def read_binary_10(paths: tuple[Path, ...]) -> Labelled:
    """``data_batch_1.bin`` …, in a folder or the original archive."""
    content = parts(paths)
    with reading(paths[0].parent):
        train = b"".join(content[f"data_batch_{i}.bin"] for i in range(1, 6))
        return Labelled(_records(train, 1), _records(content["test_batch.bin"], 1), (CLASSES,))


def read_binary_100(paths: tuple[Path, ...]) -> Labelled:
    """``train.bin``, ``test.bin`` and two lists of names, in a folder or the original archive."""
    content = parts(paths)
    with reading(paths[0].parent):
        fine, coarse = (content[f"{kind}_label_names.txt"] for kind in ("fine", "coarse"))
        names = (tuple(fine.decode().split()), tuple(coarse.decode().split()))
        return Labelled(_records(content["train.bin"], 2), _records(content["test.bin"], 2), names)


def _read_columns(paths: Sequence[Path], table: Path, *kinds: str) -> tuple[Bytes, Labels]:
    """Images out of several files, and their labels out of the columns of a table."""
    columns = read_table(table, delimiter="\t")
    images = np.concatenate([read_column_of_images(path) for path in paths])
    return images, np.stack([np.array(columns[kind], np.int64) for kind in kinds], 1)


def read_webp_10(paths: tuple[Path, ...]) -> Labelled:
    """Lossless WebP files of 500 images each, in the original order."""
    train, test, classes, *images = paths
    names = tuple(read_bytes(classes).decode().split())
    with reading(train.parent):
        return Labelled(
            _read_columns(images[:100], train, "label"),
            _read_columns(images[100:], test, "label"),
            (names,),
        )


def read_webp_100(paths: tuple[Path, ...]) -> Labelled:
    """Lossless WebP files of 500 images each, sorted by class."""
    train, test, classes, *images = paths
    facts = read_table(classes, delimiter="\t")
    with reading(train.parent):
        coarse = dict(zip(map(int, facts["coarse"]), facts["coarse_name"], strict=True))
        return Labelled(
            _read_columns(images[:100], train, "fine", "coarse"),
            _read_columns(images[100:], test, "fine", "coarse"),
            (facts["name"], tuple(coarse[label] for label in sorted(coarse))),
            sorted=True,
        )


def _forms(
    archive: File, folder: str, inside: tuple[File, ...], read: Callable[..., Any], webp: Form
) -> tuple[Form, ...]:
    """The images that git can hold, then the binary version, unpacked or not."""
    return webp, Form(inside, read, (folder,)), Form((archive,), read)


def _webp(folder: str, classes: str, read: Callable[..., Any]) -> Form:
    images = [f"train/{k:03}.webp" for k in range(100)] + [f"test/{k:03}.webp" for k in range(20)]
    return Form(tuple(map(File, ("train.tsv", "test.tsv", classes, *images))), read, (folder,))


def _archive(name: str, size: int, sha256: str) -> File:
    return File(name, (f"sha256:{sha256}",), (f"https://www.cs.toronto.edu/~kriz/{name}",), size)


CIFAR_10 = _forms(
    _archive(
        "cifar-10-binary.tar.gz",
        170052171,
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    "cifar-10-batches-bin",
    tuple(
        File(f"{name}.bin", (f"sha256:{digest}",))
        for name, digest in {
            "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        }.items()
    ),
    read_binary_10,
    _webp("cifar-10", "classes.txt", read_webp_10),
)
CIFAR_100 = _forms(
    _archive(
        "cifar-100-binary.tar.gz",
        168513733,
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
    "cifar-100-binary",
    (
        File(
            "train.bin",
            ("sha256:f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",),
        ),
        File(
            "test.bin",
            ("sha256:d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",),
        ),
        File("fine_label_names.txt"),
        File("coarse_label_names.txt"),
    ),
    read_binary_100,
    _webp("cifar-100", "classes.tsv", read_webp_100),
)
KRIZHEVSKY = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"


@register_dataset(
    "cifar10",
    task="classification",
    licence="none stated",
    source=KRIZHEVSKY,
    forms=CIFAR_10,
)
def cifar10(content: Labelled, *, scaling: str = "unit", validation: int = 10_000) -> Dataset:
    """CIFAR-10, see :func:`build_images`."""
    return build_images(content.images(0), scaling=scaling, validation=validation)


@register_dataset(
    "cifar100",
    task="classification",
    licence="none stated",
    source=KRIZHEVSKY,
    forms=CIFAR_100,
)
def cifar100(
    content: Labelled, *, scaling: str = "unit", validation: int = 10_000, labels: str = "fine"
) -> Dataset:
    """CIFAR-100 with its 100 ``fine`` or its 20 ``coarse`` labels, see :func:`build_images`."""
    kind = choose("kind of label", labels, {"fine": 0, "coarse": 1})
    return build_images(content.images(kind), scaling=scaling, validation=validation)
