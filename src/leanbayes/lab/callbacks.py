"""Data and callbacks of a run for Lightning: batches, records, learning rates, the best epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from leanbayes.analysis.log_alpha import quartiles
from leanbayes.errors import require
from leanbayes.lab.data import Batches, augmentation
from leanbayes.lab.measurements import Subject
from leanbayes.lab.recipe import Recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.weights import log_alphas, mean_scales
from leanbayes.models.random_maps import named_kl
from leanbayes.parameters.learned import from_version_1


class RunData(L.LightningDataModule):
    """Batches whose order depends on seed and epoch; every rank takes its part.

    Only training images are augmented, in a way that depends on seed, epoch, batch and rank alone.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.recipe, dataset, chosen = run.recipe, run.dataset, run.recipe.data
        self.examples = run.training_examples
        self.validation = dataset.validation or dataset.test[:0]
        require(
            chosen.augment == "none" or len(dataset.input_shape) == 3,
            f"data.augment is {chosen.augment!r}, and {dataset.name} has no images; leave it out",
        )
        self.augment = augmentation(chosen.augment, dataset, chosen.pad)

    def train_dataloader(self) -> _Loader:
        trainer = self.trainer
        assert trainer is not None
        batches = Batches(
            self.examples,
            self.recipe.training.batch_size,
            seed=self.recipe.seed,
            augment=self.augment,
            rank=trainer.global_rank,
            ranks=trainer.world_size,
        )
        return _Loader(len(batches), lambda: batches.epoch(trainer.current_epoch))

    def val_dataloader(self) -> _Loader | list[None]:
        if not len(self.validation):
            return []
        batches = Batches(self.validation, self.recipe.evaluation.batch_size)
        return _Loader(len(batches), batches.in_order)


class _Loader:
    """Batches that are requested in every epoch.

    Lightning makes the iterator of a resumed run before it knows the number of the epoch, and asks
    for the first batch when it does.
    """

    def __init__(self, size: int, start: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> None:
        self.size, self.start = size, start

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self.start():
            yield _channels_last(x), y


def _channels_last(x: Tensor) -> Tensor:
    """Return images in the memory format of the filters that ``build_model`` makes."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


class FollowLearningRate(L.Callback):
    """Sets the learning rate of an epoch from its number and the recipe: nothing to restore."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._first: list[list[float]] = []

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note the rates of the recipe, before a checkpoint brings its own."""
        self._first = [[group["lr"] for group in o.param_groups] for o in trainer.optimizers]

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        factor = self.recipe.learning_rate(trainer.current_epoch, self.recipe.training.epochs)
        for optimizer, rates in zip(trainer.optimizers, self._first, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor


class Record(L.Callback):
    """A checkpoint and a line of metrics after every epoch.

    The lines live in the checkpoint, so that both are always of the same epoch.
    """

    def __init__(self, run: Run, subject: Subject) -> None:
        self.run, self.subject = run, subject
        self.rows: list[dict[str, float]] = []
        self.seconds = 0.0
        self._clock = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows, self.seconds = list(state_dict["rows"]), state_dict["seconds"]

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the lines of a checkpoint again: a kill may have come before the last of them."""
        if self.rows and trainer.is_global_zero:
            self.run.write_metrics(self.rows)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        now = time.monotonic()
        self.seconds, self._clock = self.seconds + now - self._clock, now
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        row = {"epoch": float(trainer.current_epoch), **metrics, **_of_layers(pl_module)}
        with torch.no_grad():
            for measurement in self.run.recipe.measurements:
                row |= measurement.after_epoch(self.subject)
        self.rows.append(row)
        trainer.save_checkpoint(self.run.checkpoints.path(trainer.current_epoch))
        if trainer.is_global_zero:
            self.run.write_metrics(self.rows)
            self.run.checkpoints.drop_old()


@torch.no_grad()
def _of_layers(model: nn.Module) -> dict[str, float]:
    """KLs, mean standard deviations, and quartiles of log α where there is Gaussian dropout."""
    row = {f"kl/{name}": float(value) for name, value in named_kl(model).items()}
    row.update({f"scale/{name}": mean for name, mean in mean_scales(model).items()})
    for name, values in log_alphas(model).items():
        low, median, high = quartiles(values)
        row[f"log_alpha/{name}"] = median
        row[f"log_alpha_q25/{name}"], row[f"log_alpha_q75/{name}"] = low, high
    return row


class KeepBest(L.Callback):
    """Keeps what the model was after the epoch with the least NLL of validation examples.

    It is in every checkpoint, so that a run that is stopped and resumed ends with the same.
    """

    def __init__(self) -> None:
        self.epoch, self.nll = -1, math.inf
        self._state: dict[str, Tensor] = {}
        self._is_absolute = False

    def state_dict(self) -> dict[str, Any]:
        version = 1 if self._is_absolute else 2
        return {"epoch": self.epoch, "nll": self.nll, "state": self._state, "version": version}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch, self.nll = state_dict["epoch"], state_dict["nll"]
        self._state = dict(state_dict["state"])
        self._is_absolute = state_dict.get("version", 1) == 1

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Compare; validation has been."""
        found = float(trainer.callback_metrics["validation/nll"])
        if found < self.nll:
            self.epoch, self.nll = trainer.current_epoch, found
            state = pl_module.state_dict()
            self._state = {name: value.detach().cpu().clone() for name, value in state.items()}
            self._is_absolute = False

    def restore(self, module: L.LightningModule) -> None:
        """Give the weights of the best epoch back."""
        module.load_state_dict(
            from_version_1(module, self._state) if self._is_absolute else self._state
        )
