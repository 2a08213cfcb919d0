"""Labelled images become a data set."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leanbayes.lab.data.dataset import Dataset, Examples, scaled_dataset
from leanbayes.lab.data.formats import Bytes
from leanbayes.lab.data.splits import reordered, split_last

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
    """A data set of images."""
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
