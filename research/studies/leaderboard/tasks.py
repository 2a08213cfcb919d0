"""Networks and data of the leaderboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.errors import require
from leanbayes.lab.data import Augmentation, PadCropFlip
from leanbayes.lab.data.search import own_folders
from leanbayes.likelihoods import Likelihood
from research.corruptions import corrupt
from research.data import load_dataset
from research.data.uci import FACTS, split_rows
from research.studies.leaderboard.networks import Lstm, cnn, mlp, resnet, table

CORRUPTIONS = ("gaussian-noise", "contrast")
SEVERITY = 3
HELD_OUT = 2000
"""Validation images, which choose dropout rates and nothing else."""
TESTED = 4000


class Rows(NamedTuple):
    """Rows of a task; ``unit`` is the size of 1 in units of a numerical target."""

    x: Tensor
    y: Tensor
    validation_x: Tensor
    validation_y: Tensor
    test_x: Tensor
    test_y: Tensor
    ood_x: Tensor | None = None
    corrupted_x: tuple[Tensor, ...] = ()
    unit: float = 1.0
    augment: Augmentation | None = None


@dataclass(frozen=True)
class Task:
    """A network, its data and its training, equal for all methods.

    Args:
        title: Title in tables.
        group: Kind of task in tables.
        read: Returns the rows of a seed.
        network: Makes the network, from the size of an input and a dropout rate.
        epochs: Number of epochs.
        lr: First learning rate of a cosine decay.
        batch: Examples per step.
        sgd: Whether the user's own loop with SGD and weight decay trains it, not ``lb.fit``.
        classes: Whether targets are classes.
    """

    title: str
    group: str
    read: Callable[[int], Rows]
    network: Callable[[int, float], nn.Module]
    epochs: int
    lr: float = 1e-3
    batch: int = 128
    sgd: bool = False
    classes: bool = True

    def likelihood(self) -> Likelihood:
        """Return an untrained likelihood."""
        if self.classes:
            return lb.likelihoods.Categorical()
        return lb.likelihoods.Gaussian(0.5, noise="learned")


def _damaged(images: Tensor) -> tuple[Tensor, ...]:
    return tuple(corrupt(images, name, SEVERITY) for name in CORRUPTIONS)


@cache
def images(
    data: str, ood: str, examples: int, *, centered: bool = True, half: bool = False
) -> Rows:
    """Read images in 0 … 1, or centered; OOD images come from another data set."""
    read, other = (load_dataset(name, download=False, scaling="unit") for name in (data, ood))
    train, held_out = read.train[:examples], read.train[-HELD_OUT:]
    test = read.test[:TESTED]
    x = train.x
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)

    def scaled(images: Tensor) -> Tensor:
        small = F.avg_pool2d(images, 2) if half else images
        return (small - mean) / std if centered else small

    order = torch.randperm(len(other.test), generator=torch.Generator().manual_seed(0))
    black = tuple((-mean / std).flatten().tolist()) if centered else (0.0,)
    return Rows(
        scaled(x), train.y, scaled(held_out.x), held_out.y, scaled(test.x), test.y,
        scaled(other.test[order[:TESTED // 2]].x), tuple(map(scaled, _damaged(test.x))),
        augment=PadCropFlip(2 if half else 4, fill=black) if data == "cifar10" else None,
    )  # fmt: skip


@cache
def reviews(examples: int) -> Rows:
    """Read the last 80 words of some reviews."""
    read = load_dataset("imdb", download=False, words=5000, length=80)
    held_out = read.train[-HELD_OUT:] if read.validation is None else read.validation[:HELD_OUT]
    train, test = read.train[:examples], read.test[:TESTED]
    classes = [rows.y.long() for rows in (train, held_out, test)]
    return Rows(train.x, classes[0], held_out.x, classes[1], test.x, classes[2])


def numbers(name: str, gap: bool, seed: int) -> Rows:
    """Read a split of a UCI set; a tenth of the training rows is held out."""
    facts = FACTS[name]
    read = load_dataset(name, download=False, split=0, scaling="raw", target_scaling="raw")
    order = torch.as_tensor(np.concatenate(split_rows(facts.rows, 0))).argsort()
    x, y = (
        torch.cat([getattr(read.train, part), getattr(read.test, part)])[order] for part in "xy"
    )
    is_test = torch.zeros(len(x), dtype=torch.bool)
    is_test[_test_rows(facts.folder, facts.rows, gap, seed)] = True
    rows = torch.arange(len(x))[~is_test]
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    held_out, train = rows[: len(rows) // 10], rows[len(rows) // 10 :]
    mean, std = x[train].mean(0), x[train].std(0).clamp_min(1e-8)
    center, unit = y[train].mean(), y[train].std()
    x, y = ((x - mean) / std).float(), ((y - center) / unit).float()
    return Rows(
        x[train], y[train], x[held_out], y[held_out], x[is_test], y[is_test], unit=float(unit)
    )


def _test_rows(folder: str, rows: int, gap: bool, split: int) -> Tensor:
    if not gap:
        return torch.as_tensor(split_rows(rows, split)[1])
    files = [root / "uci-gap" / f"{folder}.npz" for root in own_folders()]
    found = [file for file in files if file.is_file()]
    require(bool(found), f"LEANBAYES_DATA must have uci-gap/{folder}.npz. Put the gap splits there")
    with np.load(found[0]) as splits:
        return torch.as_tensor(splits[f"test_{split % len(splits)}"]).long()


def _fashion(examples: int, **options: bool) -> Callable[[int], Rows]:
    return lambda seed: images("fashion-mnist", "mnist", examples, **options)


def _uci(name: str, gap: bool) -> Task:
    facts = FACTS[name]
    batch = 64 if facts.rows < 5000 else 256
    epochs = max(4, round(1500 / (0.81 * facts.rows / batch)))
    title = f"{name.split('-')[0]}{', gap' if gap else ''}"
    group = "UCI, gap splits" if gap else "UCI, standard splits"
    read = partial(numbers, name, gap)
    return Task(title, group, read, table, epochs, 0.01, batch, classes=False)


TASKS = {
    "mlp": Task("MLP", "images", _fashion(20_000, centered=False), partial(mlp, 400), 20),
    "cnn": Task("CNN", "images", _fashion(5000), cnn, 24),
    "cifar": Task(
        "ResNet, CIFAR-10 script", "images",
        lambda seed: images("cifar10", "cifar100", 5000, half=True),
        partial(resnet, 3), 30, 0.1, sgd=True,
    ),
    "resnet": Task(
        "ResNet, Fashion-MNIST", "images",
        _fashion(5000, half=True), partial(resnet, 1), 15,
    ),
    "lstm": Task("LSTM", "text", lambda seed: reviews(4000), Lstm, 6, 2e-3, 64),
    **{f"uci-{name}": _uci(name, False) for name in FACTS},
    **{f"gap-{name}": _uci(name, True) for name in FACTS},
}  # fmt: skip
