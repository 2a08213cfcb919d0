"""ImageNet as arrays on a disk: more images than a memory holds, of which batches are read."""

from pathlib import Path

import numpy as np

from leanbayes.errors import require
from leanbayes.lab.data.dataset import Dataset
from leanbayes.lab.data.files import File, Form
from leanbayes.lab.data.images import Images, build_images
from leanbayes.lab.data.sources import register_dataset
from leanbayes.lab.files import reading

FILES = tuple(f"{part}_{kind}.npy" for part in ("train", "test") for kind in ("images", "labels"))


def read_arrays_of_images(paths: tuple[Path, ...]) -> Images:
    """Return bytes ``[images, 3, rows, columns]`` and whole numbers, for training and for test.

    Pixels stay on the disk until a batch takes them. Files are written one image after another by
    ``numpy.lib.format.open_memmap``; the published test images are the 50,000 for validation.
    """
    arrays = []
    for path in paths:
        with reading(path):
            arrays.append(np.load(path, mmap_mode="c", allow_pickle=False))
    train, train_labels, test, test_labels = arrays
    for path, pixels, labels in ((paths[0], train, train_labels), (paths[2], test, test_labels)):
        right = pixels.ndim == 4 and pixels.dtype == np.uint8 and labels.shape == pixels.shape[:1]
        require(
            right and np.issubdtype(labels.dtype, np.integer),
            f"{path} has shape {pixels.shape} and type {pixels.dtype}, its labels {labels.shape} "
            f"and {labels.dtype}; write bytes [images, 3, rows, columns] and a whole number each",
        )
    known = max(int(labels.max(initial=-1)) for labels in (train_labels, test_labels)) + 1
    return Images(
        train=train,
        test=test,
        train_labels=train_labels.astype(np.int64),
        test_labels=test_labels.astype(np.int64),
        classes=tuple(map(str, range(known))),
    )


@register_dataset(
    "imagenet",
    task="classification",
    license="for non-commercial research, by agreement with image-net.org",
    source="O. Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, 2015",
    forms=(Form(tuple(map(File, FILES)), read_arrays_of_images, ("imagenet",)),),
)
def imagenet(content: Images, *, scaling: str = "imagenet", validation: int = 0) -> Dataset:
    """ImageNet, or any images of that form."""
    return build_images(content, scaling=scaling, validation=validation)
