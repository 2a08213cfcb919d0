"""A data set as a value: tensors, their scaling, splits, and the facts a report states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from leanbayes.errors import choose
from leanbayes.lab.data.columns import InputColumn


class Scaling:
    """Turns raw numbers into what a network sees: ``(raw − shift) / scale``, in float32."""

    def __init__(self, shift: float | Tensor = 0.0, scale: float | Tensor = 1.0) -> None:
        self.shift = torch.as_tensor(shift, dtype=torch.float64)
        self.scale = torch.as_tensor(scale, dtype=torch.float64)
        if not bool((self.scale > 0).all()):
            raise ValueError("a scale must be positive; use 1 where the data do not vary")
        self._shift, self._gain = self.shift.float(), (1 / self.scale).float()
        self._moves = bool((self.shift != 0).any())
        self._stretches = bool((self.scale != 1).any())

    def __call__(self, raw: Tensor) -> Tensor:
        if raw.dtype == torch.float64:
            return ((raw - self.shift) / self.scale).float()
        x = raw.clone() if raw.dtype == torch.float32 else raw.float()
        if self._moves:
            x.sub_(self._shift.to(x.device))
        return x.mul_(self._gain.to(x.device)) if self._stretches else x

    @property
    def is_identity(self) -> bool:
        """Whether numbers stay as they are."""
        return not (self._moves or self._stretches)

    def inverse(self, x: Tensor) -> Tensor:
        """Return the raw numbers of these inputs."""
        return (x * self.scale + self.shift).to(x.dtype)

    def __repr__(self) -> str:
        return f"Scaling(shift={_short(self.shift)}, scale={_short(self.scale)})"


def _short(value: Tensor) -> str:
    return f"{float(value):g}" if value.ndim == 0 else f"tensor of shape {tuple(value.shape)}"


def _channel(train: Tensor, peak: int) -> Scaling:
    """From counts of the 256 values: exact, and no float copy of all images is made."""
    values = torch.arange(256, dtype=torch.float64)
    counts = torch.stack([torch.bincount(c.flatten(), minlength=256) for c in train.unbind(1)])
    share = counts.double() / counts.sum(1, keepdim=True)
    mean = share @ values
    std = (share * (values - mean.unsqueeze(1)).square()).sum(1).sqrt()
    return Scaling(mean.view(-1, 1, 1), torch.where(std > 0, std, 1.0).view(-1, 1, 1))


def _pixel_mean(train: Tensor, peak: int) -> Scaling:
    return Scaling(train.sum(0, dtype=torch.int64).double() / len(train), float(peak))


def _constants(*pair: tuple[float, float, float]) -> Callable[[Tensor, int], Scaling]:
    """By a mean and a standard deviation of each channel that are known before."""

    def constants(train: Tensor, peak: int) -> Scaling:
        return Scaling(*(peak * torch.tensor(pair, dtype=torch.float64).view(2, 3, 1, 1)))

    return constants


def _standard(train: Tensor) -> Scaling:
    """Return a column that does not vary, but for rounding, is only shifted, unless it is huge."""
    std, mean = torch.std_mean(train.double(), 0, correction=0)
    rounding = 1e-10 * mean.abs()
    return Scaling(mean, torch.where(std > rounding, std, rounding.clamp_min(1.0)))


CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
IMAGE_SCALINGS: dict[str, tuple[Callable[[Tensor, int], Scaling], str]] = {
    "raw": (lambda train, peak: Scaling(), "pixels from 0 to {peak}"),
    "unit": (lambda train, peak: Scaling(0.0, peak), "pixels in [0, 1]"),
    "symmetric": (lambda train, peak: Scaling(peak / 2, peak / 2), "pixels in [-1, 1]"),
    "pixel-mean": (_pixel_mean, "pixels in [0, 1] less their mean over the training images"),
    "channel": (_channel, "mean 0 and standard deviation 1 in each channel of the training images"),
    "cifar": (
        _constants(CIFAR_MEAN, (0.2470, 0.2435, 0.2616)),
        "pixels in [0, 1] less (.4914, .4822, .4465), over (.2470, .2435, .2616)",
    ),
    "cifar-2020": (
        _constants(CIFAR_MEAN, (0.2023, 0.1994, 0.2010)),
        "pixels in [0, 1] less (.4914, .4822, .4465), over (.2023, .1994, .2010)",
    ),
    "imagenet": (
        _constants((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "pixels in [0, 1] less (.485, .456, .406), over (.229, .224, .225)",
    ),
}
"""Scalings of pixels, and what a report says of them.

``symmetric`` is the MLP of the k-tied paper, ``pixel-mean`` the ResNet of its supplement, ``raw``
the VGG of the variance-networks paper, ``cifar-2020`` and ``cifar`` the constants in the code of
rank-1 BNNs when it was published and now, ``imagenet`` what most networks on ImageNet use.
"""

TABLE_SCALINGS: dict[str, tuple[Callable[[Tensor], Scaling], str]] = {
    "standard": (_standard, "mean 0 and standard deviation 1 over the training examples"),
    "raw": (lambda train: Scaling(), "as they are"),
}
"""Scalings of other numbers, and of real targets."""


def split_last(examples: Examples, count: int) -> tuple[Examples, Examples | None]:
    """Return the last ``count`` examples apart from the others."""
    if not 0 <= count < len(examples):
        raise ValueError(
            f"validation={count} cannot be set apart from {len(examples)} training examples; "
            f"give a number from 0 to {len(examples) - 1}"
        )
    end = len(examples) - count
    return examples[:end], examples[end:] if count else None


def reordered(examples: Examples, seed: int) -> Examples:
    """Shuffle the examples by numpy's RandomState, whose order never changes."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed}; a split takes a whole number from 0 to 2**32 - 1")
    return examples[torch.from_numpy(np.random.RandomState(seed).permutation(len(examples)))]


def random_split(
    examples: Examples, test: float, validation: float, seed: int
) -> tuple[Examples, Examples | None, Examples]:
    """Train, validation and test examples: random shares of all, the last two rounded."""
    count = len(examples)
    tested, held_out = round(test * count), round(validation * count)
    if not (tested > 0 <= held_out and tested + held_out < count):
        raise ValueError(
            f"test={test} and validation={validation} of {count} examples leave a part empty; "
            "give shares between 0 and 1 that leave some for training"
        )
    train, last = split_last(reordered(examples, seed), tested)
    assert last is not None
    return *split_last(train, held_out), last


Task = Literal["classification", "regression", "sequence", "density"]


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets; pixels stay bytes until a batch is taken.

    Args:
        stored: inputs as they are kept, ``[examples, …]``: bytes, indices or finished floats.
        targets: values to predict, or None where the inputs are their own targets.
        scaling: applied to bytes when a batch is taken.
    """

    stored: Tensor
    targets: Tensor | None = None
    scaling: Scaling | None = None

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: slice | Tensor) -> Examples:
        targets = None if self.targets is None else self.targets[rows]
        return Examples(self.stored[rows], targets, self.scaling)

    @property
    def x(self) -> Tensor:
        """All inputs, ready to use; scaled at every call."""
        return self.stored if self.scaling is None else self.scaling(self.stored)

    @property
    def y(self) -> Tensor:
        """All targets; the inputs, where there are no others."""
        return self.x if self.targets is None else self.targets

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of these examples: one gather each."""
        x = self.stored.index_select(0, index)
        x = x if self.scaling is None else self.scaling(x)
        return x, x if self.targets is None else self.targets.index_select(0, index)

    def to(self, device: torch.device | str) -> Examples:
        """Return the same examples on another device; pixels travel as bytes."""
        targets = None if self.targets is None else self.targets.to(device)
        return Examples(self.stored.to(device), targets, self.scaling)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training, validation and test examples, with what a report has to say of them.

    Args:
        name: name as :func:`leanbayes.lab.data.load_dataset` knows it.
        task: kind of prediction.
        train: training examples.
        validation: validation examples, or None.
        test: test examples.
        classes: names of the classes, by label; empty where there are none.
        license: license of the data.
        source: source, as one would cite it.
        preprocessing: preprocessing of the raw files, in words.
        scaling: raw inputs to inputs, for new data; None where inputs are indices.
        target_scaling: raw targets to targets, in regression.
        columns: conversion of a table to raw inputs; empty where the inputs are not a table.
    """

    name: str
    task: Task
    train: Examples
    test: Examples
    license: str = ""
    source: str = ""
    preprocessing: str = ""
    validation: Examples | None = None
    classes: tuple[str, ...] = ()
    scaling: Scaling | None = None
    target_scaling: Scaling | None = None
    columns: tuple[InputColumn, ...] = ()

    @property
    def data_size(self) -> int:
        """How many training examples there are: what :func:`leanbayes.elbo` wants."""
        return len(self.train)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.stored.shape[1:])

    @property
    def black(self) -> tuple[float, ...]:
        """What a black pixel has become, by channel: the border of a padded image."""
        if self.scaling is None or len(self.input_shape) != 3:
            raise ValueError(f"{self.name} has no images, and so no black pixels")
        black = self.scaling(torch.zeros(self.input_shape)).flatten(1)
        if not torch.equal(black.amin(1), black.amax(1)):
            raise ValueError("a mean per pixel leaves no one value for a border; pad by 0.0")
        return tuple(black[:, 0].tolist())

    def __repr__(self) -> str:
        sizes = f"train={len(self.train)}, "
        sizes += "" if self.validation is None else f"validation={len(self.validation)}, "
        sizes += f"test={len(self.test)}"
        kind = f"{len(self.classes)} classes" if self.classes else self.task
        return f"Dataset({self.name}: {sizes}, inputs {self.input_shape}, {kind})"


def scaled_dataset(
    train: Examples,
    validation: Examples | None,
    test: Examples,
    *,
    scaling: str,
    preprocessing: list[str],
    target_scaling: str = "standard",
    peak: int = 255,
    classes: tuple[str, ...] = (),
) -> Dataset:
    """Make a data set without a name, with scaled inputs and scaled real targets.

    Bytes are pixels, up to ``peak``, and stay bytes until a batch is taken; ``preprocessing`` says
    what was done to the raw examples before.
    """
    inputs, words = _input_scaling(train.stored, scaling, peak)
    notes = [*preprocessing, words]
    targets, task = None, _task(train.targets)
    if train.targets is not None and task == "regression":
        scale, words = choose("target scaling", target_scaling, TABLE_SCALINGS)
        targets = scale(train.targets)
        notes.append(f"targets {words}")

    def scaled(part: Examples) -> Examples:
        y = part.targets if targets is None or part.targets is None else targets(part.targets)
        if part.stored.dtype == torch.uint8:
            return Examples(part.stored, y, inputs)
        return Examples(inputs(part.stored), y)

    return Dataset(
        name="",
        task=task,
        train=scaled(train),
        validation=None if validation is None else scaled(validation),
        test=scaled(test),
        scaling=inputs,
        target_scaling=targets,
        preprocessing="; ".join(notes),
        classes=classes,
    )


def _input_scaling(train: Tensor, name: str, peak: int) -> tuple[Scaling, str]:
    """Return the scaling of this name for pixels or other numbers, and what a report says of it."""
    if train.dtype == torch.uint8:
        scale_pixels, words = choose("scaling of images", name, IMAGE_SCALINGS)
        return scale_pixels(train, peak), words.format(peak=peak)
    scale, words = choose("scaling", name, TABLE_SCALINGS)
    return scale(train), f"inputs {words}"


def _task(targets: Tensor | None) -> Task:
    if targets is None:
        return "density"
    return "regression" if targets.is_floating_point() else "classification"
