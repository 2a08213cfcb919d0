"""The data of the papers' experiments: which set, which split, which preprocessing.

What a paper or its code states is kept; where it states nothing, the entry says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from leanbayes.errors import choose
from leanbayes.lab.data.augment import Augmentation, Flip, PadCropFlip
from leanbayes.lab.data.catalogue import load
from leanbayes.lab.data.dataset import Dataset

__all__ = ["EXPERIMENTS", "Experiment", "augmentation", "load_experiment"]


@dataclass(frozen=True)
class Experiment:
    """Data of one experiment.

    Args:
        data: the name of the data set.
        options: what :func:`leanbayes.lab.data.load` is given.
        augment: name of an augmentation, see :func:`augmentation`.
        pad: pixels added on each side.
        note: what the paper leaves open.
    """

    data: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    augment: Literal["none", "flip", "crop-flip", "crop-flip-shared"] = "none"
    pad: int = 0
    note: str = ""


def _of(
    data: str, augment: Any = "none", pad: int = 0, note: str = "", **options: Any
) -> Experiment:
    return Experiment(data, MappingProxyType(options), augment, pad, note)


OPEN = "the paper states neither scaling nor validation split"
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        # k-tied
        "k-tied/mlp": _of("mnist", scaling="symmetric", validation=10_000),
        "k-tied/cnn": _of("cifar100", scaling="unit", validation=10_000, labels="fine"),
        "k-tied/lstm": _of("imdb", words=20_000, length=80, validation=5_000),
        "k-tied/resnet": _of("cifar10", scaling="pixel-mean", validation=0),
        # variance
        "variance/lenet": _of("mnist", scaling="unit", validation=0),
        "variance/vgg-cifar10": _of(
            "cifar10", "crop-flip-shared", pad=4, scaling="raw", validation=0
        ),
        "variance/vgg-cifar100": _of(
            "cifar100", "crop-flip-shared", pad=4, scaling="raw", validation=0, labels="coarse"
        ),
        # matrix normal
        "matrix-normal/mlp-mnist": _of("mnist", note=OPEN, scaling="unit", validation=0),
        "matrix-normal/mlp-fashion": _of("fashion-mnist", note=OPEN, scaling="unit", validation=0),
        "matrix-normal/cnn": _of("fashion-mnist", note=OPEN, scaling="unit", validation=0),
        "matrix-normal/vgg": _of("cifar10", note=OPEN, scaling="unit", validation=0),
        "matrix-normal/vgg-sparse": _of("cifar10", "flip", note=OPEN, scaling="unit", validation=0),
        "matrix-normal/vae": _of("mnist-static-binarized"),
        # rank-1
        "rank1/cifar10": _of("cifar10", "crop-flip", pad=2, scaling="cifar-2020", validation=0),
        "rank1/cifar100": _of("cifar100", "crop-flip", pad=2, scaling="cifar-2020", validation=0),
    }
)


def augmentation(name: str, dataset: Dataset, pad: int = 2) -> Augmentation | None:
    """An augmentation by its name; borders are black as in the raw images.

    Args:
        name: ``"none"``, ``"flip"``, ``"crop-flip"``, or ``"crop-flip-shared"``: one draw a batch.
        dataset: what it is for.
        pad: pixels added on each side before the crop.
    """
    makers: dict[str, Callable[[], Augmentation | None]] = {
        "none": lambda: None,
        "flip": Flip,
        "crop-flip": lambda: PadCropFlip(pad, dataset.black),
        "crop-flip-shared": lambda: PadCropFlip(pad, dataset.black, shared=True),
    }
    return choose("augmentation", name, makers)()


def load_experiment(name: str, **changes: Any) -> tuple[Dataset, Augmentation | None]:
    """The data of an experiment and its augmentation; ``changes`` overwrite options.

    Args:
        name: one of :data:`EXPERIMENTS`.
        changes: options of :func:`leanbayes.lab.data.load` that differ.
    """
    experiment = choose("experiment", name, EXPERIMENTS)
    dataset = load(experiment.data, **{**experiment.options, **changes})
    return dataset, augmentation(experiment.augment, dataset, experiment.pad)
