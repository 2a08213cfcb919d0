"""Scalings of inputs and targets by name; their statistics are those of the training examples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leanbayes.errors import choose
from leanbayes.lab.data.dataset import Dataset, Examples, Scaling, Task

__all__ = ["IMAGE_SCALINGS", "TABLE_SCALINGS", "scaled_dataset"]


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


def _cifar(*std: float) -> Callable[[Tensor, int], Scaling]:
    def constants(train: Tensor, peak: int) -> Scaling:
        pair = torch.tensor([CIFAR_MEAN, std], dtype=torch.float64).view(2, 3, 1, 1)
        return Scaling(*(peak * pair))

    return constants


def _standard(train: Tensor) -> Scaling:
    """A column that does not vary, but for rounding, is only shifted."""
    std, mean = torch.std_mean(train.double(), 0, correction=0)
    return Scaling(mean, torch.where(std > 1e-10 * mean.abs(), std, 1.0))


CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
IMAGE_SCALINGS: dict[str, tuple[Callable[[Tensor, int], Scaling], str]] = {
    "raw": (lambda train, peak: Scaling(), "pixels from 0 to {peak}"),
    "unit": (lambda train, peak: Scaling(0.0, peak), "pixels in [0, 1]"),
    "symmetric": (lambda train, peak: Scaling(peak / 2, peak / 2), "pixels in [-1, 1]"),
    "pixel-mean": (_pixel_mean, "pixels in [0, 1] less their mean over the training images"),
    "channel": (_channel, "mean 0 and standard deviation 1 in each channel of the training images"),
    "cifar": (
        _cifar(0.2470, 0.2435, 0.2616),
        "pixels in [0, 1] less (.4914, .4822, .4465), over (.2470, .2435, .2616)",
    ),
    "cifar-2020": (
        _cifar(0.2023, 0.1994, 0.2010),
        "pixels in [0, 1] less (.4914, .4822, .4465), over (.2023, .1994, .2010)",
    ),
}
"""Scalings of pixels, and what a report says of them.

``symmetric`` is the k-tied MLP, ``pixel-mean`` the k-tied supplement ResNet, ``raw`` the VGG of the
variance-networks paper, ``cifar-2020`` and ``cifar`` the constants in the code of rank-1 BNNs when
it was published and now.
"""

TABLE_SCALINGS: dict[str, tuple[Callable[[Tensor], Scaling], str]] = {
    "standard": (_standard, "mean 0 and standard deviation 1 over the training examples"),
    "raw": (lambda train: Scaling(), "as they are"),
}
"""Scalings of other numbers, and of real targets."""


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
    """A data set, yet without a name, whose inputs, and targets if they are real, are scaled.

    Args:
        train: raw examples; bytes are pixels, and stay bytes until a batch is taken.
        validation: the same.
        test: the same.
        scaling: one of :data:`IMAGE_SCALINGS` for pixels, else of :data:`TABLE_SCALINGS`.
        preprocessing: what was done before, in words.
        target_scaling: one of :data:`TABLE_SCALINGS`.
        peak: the value of a white pixel.
        classes: names of the classes, by label.
    """
    pixels = train.stored.dtype == torch.uint8
    if pixels:
        scale_pixels, words = choose("scaling of images", scaling, IMAGE_SCALINGS)
        inputs = scale_pixels(train.stored, peak)
        words = words.format(peak=peak)
    else:
        scale, words = choose("scaling", scaling, TABLE_SCALINGS)
        inputs, words = scale(train.stored), f"inputs {words}"
    notes = [*preprocessing, words]
    targets, task = None, _task(train.targets)
    if train.targets is not None and task == "regression":
        scale, words = choose("target scaling", target_scaling, TABLE_SCALINGS)
        targets = scale(train.targets)
        notes.append(f"targets {words}")

    def scaled(part: Examples) -> Examples:
        y = part.targets if targets is None or part.targets is None else targets(part.targets)
        return Examples(part.stored, y, inputs) if pixels else Examples(inputs(part.stored), y)

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


def _task(targets: Tensor | None) -> Task:
    if targets is None:
        return "density"
    return "regression" if targets.is_floating_point() else "classification"
