"""CIFAR-10 and CIFAR-100: the authors' binary version, and lossless images that git can hold."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leanbayes.errors import choose
from leanbayes.lab.data.dataset import Dataset
from leanbayes.lab.data.files import File, Form
from leanbayes.lab.data.images import Bytes, Images, build_images, read_bytes
from leanbayes.lab.data.sources import register_dataset
from leanbayes.lab.files import reading
from leanbayes.lab.tables import read_table
from research.data.formats import parts, read_column_of_images

CLASSES: tuple[str, ...] = ("airplane", "automobile", "bird", "cat", "deer")
CLASSES += ("dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Labeled:
    """Images ``[examples, 3, 32, 32]`` with labels ``[examples, kinds]`` and their names.

    CIFAR-100 has two kinds of label, the fine and the coarse one.
    """

    train: tuple[Bytes, Labels]
    test: tuple[Bytes, Labels]
    classes: tuple[tuple[str, ...], ...]
    sorted: bool = False

    def __post_init__(self) -> None:
        for images, labels in (self.train, self.test):
            if len(images) != len(labels):
                raise ValueError(f"there are {len(images)} images and {len(labels)} labels")

    def build(self, kind: int, scaling: str, validation: int) -> Dataset:
        """Return the data set with one kind of label."""
        content = Images(
            train=self.train[0],
            test=self.test[0],
            train_labels=self.train[1][:, kind],
            test_labels=self.test[1][:, kind],
            classes=self.classes[kind],
            sorted=self.sorted,
        )
        return build_images(content, scaling=scaling, validation=validation)


def _records(content: bytes, kinds: int) -> tuple[Bytes, Labels]:
    """The binary version: label bytes, the coarse one first, then 3072 of pixels, an image."""
    rows = np.frombuffer(content, np.uint8).reshape(-1, kinds + PIXELS)
    labels = rows[:, :kinds].astype(np.int64)
    return np.ascontiguousarray(rows[:, kinds:]).reshape(-1, 3, 32, 32), labels[:, ::-1]


def read_binary_10(paths: tuple[Path, ...]) -> Labeled:
    """Return ``data_batch_1.bin`` …, in a folder or the original archive."""
    content = parts(paths)
    with reading(paths[0].parent):
        train = b"".join(content[f"data_batch_{i}.bin"] for i in range(1, 6))
        return Labeled(_records(train, 1), _records(content["test_batch.bin"], 1), (CLASSES,))


def read_binary_100(paths: tuple[Path, ...]) -> Labeled:
    """``train.bin``, ``test.bin`` and two lists of names, in a folder or the original archive."""
    content = parts(paths)
    with reading(paths[0].parent):
        fine, coarse = (content[f"{kind}_label_names.txt"] for kind in ("fine", "coarse"))
        names = (tuple(fine.decode().split()), tuple(coarse.decode().split()))
        return Labeled(_records(content["train.bin"], 2), _records(content["test.bin"], 2), names)


def _read_columns(paths: tuple[Path, ...], *kinds: str) -> Iterator[tuple[Bytes, Labels]]:
    """Training, then test images and labels: columns of a table, and files of 500 images each."""
    train, test, _, *images = paths
    for table, files in ((train, images[:100]), (test, images[100:])):
        columns = read_table(table, delimiter="\t")
        pixels = np.concatenate([read_column_of_images(path) for path in files])
        yield pixels, np.stack([np.array(columns[kind], np.int64) for kind in kinds], 1)


def read_webp_10(paths: tuple[Path, ...]) -> Labeled:
    """Return lossless WebP files, in the original order."""
    names = tuple(read_bytes(paths[2]).decode().split())
    with reading(paths[0].parent):
        train, test = _read_columns(paths, "label")
        return Labeled(train, test, (names,))


def read_webp_100(paths: tuple[Path, ...]) -> Labeled:
    """Return lossless WebP files, sorted by class."""
    facts = read_table(paths[2], delimiter="\t")
    with reading(paths[0].parent):
        coarse = dict(zip(map(int, facts["coarse"]), facts["coarse_name"], strict=True))
        names = (facts["name"], tuple(coarse[label] for label in sorted(coarse)))
        train, test = _read_columns(paths, "fine", "coarse")
        return Labeled(train, test, names, sorted=True)


def _webp(folder: str, classes: str, read: Callable[..., Any]) -> Form:
    images = [f"train/{k:03}.webp" for k in range(100)] + [f"test/{k:03}.webp" for k in range(20)]
    return Form(tuple(map(File, ("train.tsv", "test.tsv", classes, *images))), read, (folder,))


def _binary(
    folder: str, inside: dict[str, str], archive: tuple[str, int, str], read: Callable[..., Any]
) -> tuple[Form, Form]:
    """The binary version: files with their digests, if any, and the archive that holds them."""
    files = (File(n, (f"sha256:{digest}",) if digest else ()) for n, digest in inside.items())
    name, size, digest = archive
    address = f"https://www.cs.toronto.edu/~kriz/{name}"
    packed = File(name, (f"sha256:{digest}",), (address,), size)
    return Form(tuple(files), read, (folder,)), Form((packed,), read)


CIFAR_10 = (
    _webp("cifar-10", "classes.txt", read_webp_10),
    *_binary(
        "cifar-10-batches-bin",
        {
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        (
            "cifar-10-binary.tar.gz",
            170052171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
        read_binary_10,
    ),
)
CIFAR_100 = (
    _webp("cifar-100", "classes.tsv", read_webp_100),
    *_binary(
        "cifar-100-binary",
        {
            "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
            "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
            "fine_label_names.txt": "",
            "coarse_label_names.txt": "",
        },
        (
            "cifar-100-binary.tar.gz",
            168513733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
        read_binary_100,
    ),
)
cifar = partial(
    register_dataset,
    task="classification",
    license="none stated",
    source="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
)


@cifar("cifar10", forms=CIFAR_10)
def cifar10(content: Labeled, *, scaling: str = "unit", validation: int = 10_000) -> Dataset:
    """Return CIFAR-10, see :func:`build_images`."""
    return content.build(0, scaling, validation)


@cifar("cifar100", forms=CIFAR_100)
def cifar100(
    content: Labeled, *, scaling: str = "unit", validation: int = 10_000, labels: str = "fine"
) -> Dataset:
    """CIFAR-100 with its 100 ``fine`` or its 20 ``coarse`` labels, see :func:`build_images`."""
    kind = choose("kind of label", labels, {"fine": 0, "coarse": 1})
    return content.build(kind, scaling, validation)
