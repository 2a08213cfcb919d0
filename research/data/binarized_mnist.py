"""Static binarized MNIST: 784 characters 0 or 1 per line."""

from pathlib import Path

import numpy as np

from leanbayes.lab.data.dataset import Dataset
from leanbayes.lab.data.files import File, Form
from leanbayes.lab.data.images import Bytes, Images, build_images, read_bytes
from leanbayes.lab.data.sources import register_dataset
from leanbayes.lab.files import reading

AMAT_ROW = 2 * 784


def read_amat(path: Path) -> Bytes:
    """Return binary images ``[examples, 28, 28]`` from text: 784 characters 0 or 1 per line."""
    content = np.frombuffer(read_bytes(path), np.uint8)
    with reading(path):
        rows = content.reshape(-1, AMAT_ROW)
        pixels = rows[:, 0::2] - ord("0")
        spaced = (rows[:, 1:-1:2] == ord(" ")).all() and (rows[:, -1] == ord("\n")).all()
        if not len(rows) or pixels.max() > 1 or not spaced:
            raise ValueError("a line is not 784 characters 0 or 1 with spaces between them")
        return pixels.reshape(-1, 28, 28)


def read_binarized(paths: tuple[Path, ...]) -> Images:
    """Training, validation and test images in amat files."""
    train, validation, test = (read_amat(path)[:, None] for path in paths)
    return Images(train=train, validation=validation, test=test, peak=1)


AMAT = "http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"
BINARIZED = (
    ("train", 78400000, "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d"),
    ("valid", 15680000, "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2"),
    ("test", 15680000, "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c"),
)


def _amat_form(suffix: str, mirror: str | None) -> Form:
    names = tuple(f"binarized_mnist_{part}.amat{suffix}" for part, _, _ in BINARIZED)
    files = tuple(
        File(name, (f"content-sha256:{digest}",), (mirror + name,) if mirror else (), size)
        for name, (_, size, digest) in zip(names, BINARIZED, strict=True)
    )
    return Form(files, read_binarized, ("binarized-mnist", "mnist-static-binarized"))


@register_dataset(
    "mnist-static-binarized",
    task="density",
    license="as MNIST (CC BY-SA 3.0); none stated for the samples",
    source="H. Larochelle, I. Murray, The Neural Autoregressive Distribution Estimator, 2011",
    forms=(_amat_form(".xz", None), _amat_form("", AMAT)),
)
def binarized_mnist(content: Images) -> Dataset:
    """Static binarized MNIST: pixels are 0 or 1, and are their own targets."""
    return build_images(content, scaling="raw")
