"""MNIST and its relatives as idx files, and the digits of scikit-learn."""

from functools import partial
from itertools import zip_longest
from pathlib import Path

import numpy as np

from leanbayes.lab.data.dataset import Dataset
from leanbayes.lab.data.extras import extra
from leanbayes.lab.data.files import File, Form
from leanbayes.lab.data.images import Images, build_images, read_idx
from leanbayes.lab.data.sources import register_dataset

DIGITS = tuple("0123456789")
FASHION: tuple[str, ...] = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat")
FASHION += ("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
KUZUSHIJI = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")


def read_images(paths: tuple[Path, ...], classes: tuple[str, ...]) -> Images:
    """Training images and labels, test images and labels, in idx files."""
    train, train_labels, test, test_labels = map(read_idx, paths)
    parts = ((paths[0], train, train_labels), (paths[2], test, test_labels))
    for path, images, labels in parts:
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise ValueError(
                f"{path} has shape {images.shape} and its labels {labels.shape}; these are not "
                "images with their labels"
            )
    return Images(
        train=train[:, None],
        test=test[:, None],
        train_labels=train_labels.astype(np.int64),
        test_labels=test_labels.astype(np.int64),
        classes=classes,
    )


IDX_FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)


def _idx_forms(
    folder: str,
    torchvision: str,
    classes: tuple[str, ...],
    mirrors: tuple[str, ...],
    sizes: tuple[int, ...],
    packed: tuple[str, ...],
    unpacked: tuple[str, ...] = (),
    system: tuple[str, ...] = (),
) -> tuple[Form, ...]:
    """The packed files, and the unpacked ones that torchvision leaves; with digests of both."""
    archives, files = [], []
    digests = zip_longest(packed, (f"content-sha256:{digest}" for digest in unpacked))
    for name, size, (outside, inside) in zip(IDX_FILES, sizes, digests, strict=True):
        content = (inside,) if inside else ()
        addresses = tuple(f"{mirror}{name}.gz" for mirror in mirrors)
        archives.append(File(f"{name}.gz", (outside, *content), addresses, size))
        files.append(File(name, content))
    read = partial(read_images, classes=classes)
    folders = (folder, f"{torchvision}/raw")
    return Form(tuple(archives), read, folders, system), Form(tuple(files), read, folders)


MNIST = _idx_forms(
    "mnist",
    "MNIST",
    DIGITS,
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    (9912422, 28881, 1648877, 4542),
    packed=(
        "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    unpacked=(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)
FASHION_MNIST = _idx_forms(
    "fashion-mnist",
    "FashionMNIST",
    FASHION,
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    ),
    (26421880, 29515, 4422102, 5148),
    packed=(
        "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "md5:25c81989df183df01b3e8a0aad5dffbe",
        "md5:bef4ecab320f06d8554ea6380940ec79",
        "md5:bb300cfdad3c16e7a12a480ee83cd310",
    ),
    unpacked=(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    system=("/usr/share/datasets/fashion-mnist",),
)
KMNIST = _idx_forms(
    "kmnist",
    "KMNIST",
    KUZUSHIJI,
    ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
    (18165135, 29497, 3041136, 5120),
    packed=(
        "sha256:51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
        "sha256:e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
        "sha256:edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
        "sha256:20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
    ),
)


@register_dataset(
    "digits",
    task="classification",
    license="CC BY 4.0",
    source="E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI; "
    "in scikit-learn",
)
def digits(*, scaling: str = "unit", validation: int = 180) -> Dataset:
    """Load the 1797 digits of scikit-learn in a fixed random order; the last 360 are for test."""
    datasets = extra("sklearn.datasets", "scikit-learn", "the data set 'digits'")
    bunch = datasets.load_digits()
    order = np.random.RandomState(0).permutation(len(bunch.target))
    images, labels = bunch.images[order].astype(np.uint8)[:, None], bunch.target[order]
    content = Images(
        train=images[:-360],
        test=images[-360:],
        train_labels=labels[:-360],
        test_labels=labels[-360:],
        classes=DIGITS,
        peak=16,
        note="in one random order (numpy RandomState(0)), last 360 images for test",
    )
    return build_images(content, scaling=scaling, validation=validation)


register_images = partial(register_dataset, task="classification")
register_images(
    "mnist",
    license="CC BY-SA 3.0",
    source="Y. LeCun, C. Cortes, C. Burges, The MNIST Database of Handwritten Digits",
    forms=MNIST,
)(build_images)
register_images(
    "fashion-mnist",
    license="MIT",
    source="H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, 2017",
    forms=FASHION_MNIST,
)(build_images)
register_images(
    "kmnist",
    license="CC BY-SA 4.0",
    source="T. Clanuwat et al., Deep Learning for Classical Japanese Literature, 2018",
    forms=KMNIST,
)(build_images)
