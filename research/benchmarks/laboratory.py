"""What the laboratory costs: an epoch of it against a bare torch loop over the same model and data.

Both train 784-400-400-10 with 2-tied posteriors [k-tied] in batches of 1024 with Adam. The
laboratory does it as ``leanbayes train`` does: Lightning, its data batches, its callbacks, a
checkpoint and the metrics of every epoch; validation is left out of both. Epochs take turns in one
process. The images are MNIST if it is in a folder that ``LEANBAYES_DATA`` names, else random
pixels of the same size. The bare loop reads float images from memory and gathers each batch by its
index.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F

import leanbayes as lb
from leanbayes.lab import runs
from leanbayes.lab import train as training
from leanbayes.lab.data import Dataset, Examples, Scaling
from leanbayes.lab.files import write_json
from leanbayes.lab.from_recipe import build_model
from leanbayes.lab.recipe import Recipe, check_recipe
from research.data import load_dataset
from research.measuring.harness import quartiles
from research.measuring.machine import facts

TARGET = 1.15
BATCH, LR = 1024, 1e-3


def images(examples: int) -> Dataset:
    """Return MNIST where it lies, else noise of its size, with the last examples left for test."""
    if os.environ.get("LEANBAYES_DATA"):
        return replace(load_dataset("mnist", download=False), validation=None)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (examples, 1, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (examples,), generator=generator)
    scaling = Scaling(127.5, 127.5)
    everything = Examples(pixels, labels, scaling)
    return Dataset(
        "generated",
        "classification",
        train=everything,
        test=everything[:BATCH],
        license="none",
        source="random numbers",
        preprocessing="pixels in [-1, 1]",
        scaling=scaling,
    )


def recipe(epochs: int) -> Recipe:
    return check_recipe(
        {
            "name": "framework-cost",
            "data": {"name": "mnist"},
            "architecture": {"name": "mlp"},
            "posterior": {"kind": "KTied", "rank": 2},
            "prior": {"kind": "Normal", "scale": 0.3},
            "optimizer": {"lr": LR},
            "training": {"epochs": epochs, "batch_size": BATCH},
            "evaluation": {"samples": 1},
        }
    )


def bare_epochs(what: Recipe, dataset: Dataset) -> Callable[[], None]:
    """Return the loop anybody would write."""
    model = build_model(what)
    x, y = dataset.train.x, dataset.train.y
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)

    def epoch() -> None:
        for index in torch.randperm(len(x)).split(BATCH):
            loss = F.cross_entropy(model(x[index]), y[index])
            optimizer.zero_grad()
            lb.elbo(loss, lb.kl(model), data_size=len(x)).loss.backward()
            optimizer.step()

    return epoch


class Turns(L.Callback):
    """Lets the bare loop run before every epoch of the laboratory, and times both."""

    def __init__(self, other: Callable[[], None]) -> None:
        self.other = other
        self.seconds: dict[str, list[float]] = {"bare": [], "lab": []}
        self.started: float | None = None

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """An epoch of the laboratory ends where its next one starts: nothing of it is left out."""
        self.stop()
        before = time.perf_counter()
        self.other()
        self.started = time.perf_counter()
        self.seconds["bare"].append(self.started - before)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.stop()

    def stop(self) -> None:
        if self.started is not None:
            self.seconds["lab"].append(time.perf_counter() - self.started)


@contextmanager
def watched(turns: Turns, dataset: Dataset) -> Iterator[None]:
    """The laboratory's own training with this data and one more callback."""
    build_trainer, load_data = training.build_trainer, runs.load_data

    def with_turns(
        what: Recipe, folder: Path, callbacks: list[L.Callback], *rest: Any, **options: Any
    ) -> L.Trainer:
        return build_trainer(what, folder, [*callbacks, turns], *rest, **options)

    training.build_trainer, runs.load_data = with_turns, lambda _: dataset
    try:
        yield
    finally:
        training.build_trainer, runs.load_data = build_trainer, load_data


def measure(epochs: int, examples: int) -> dict[str, Any]:
    """The first epoch of each is a warm-up and does not count."""
    what, dataset = recipe(epochs + 1), images(examples)
    turns = Turns(bare_epochs(what, dataset))
    with tempfile.TemporaryDirectory() as folder, watched(turns, dataset):
        training.train(what, folder, progress=False)
    lab, bare = turns.seconds["lab"][1:], turns.seconds["bare"][1:]
    assert len(lab) == len(bare) == epochs
    ratios = quartiles([ours / theirs for ours, theirs in zip(lab, bare, strict=True)])
    return {
        "data": dataset.name,
        "examples": len(dataset.train),
        "epochs": epochs,
        "seconds_per_epoch": {"lab": statistics.median(lab), "bare": statistics.median(bare)},
        "ratio": dict(zip(("low", "median", "high"), ratios, strict=True)),
        "target": TARGET,
    }


def measure_epochs(epochs: int, examples: int, out: Path) -> None:
    """Measure epochs, and write the file of results."""
    result = measure(epochs, examples)
    write_json(out, {**facts(), **result})
    cost, seconds = result["ratio"], result["seconds_per_epoch"]
    print(
        f"lab {seconds['lab']:.2f} s, bare {seconds['bare']:.2f} s an epoch of {result['data']}: "
        f"{cost['median']:.3f} × ({cost['low']:.3f}–{cost['high']:.3f}), target {TARGET} ×"
    )
