"""What Lightning is given for a run: batches by epoch, learning rates, and the record."""

from __future__ import annotations

import csv
import io
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from leanbayes.lab.data import Batches, Dataset, Examples, augmentation
from leanbayes.lab.files import write_text
from leanbayes.lab.recipe import Recipe
from leanbayes.lab.weights import log_alphas, mean_scales, quartiles
from leanbayes.model import named_kl

__all__ = ["Data", "LearningRate", "Record"]

KEPT_CHECKPOINTS = 2


class Data(L.LightningDataModule):
    """Batches whose order depends on seed and epoch; every rank takes its part.

    Only training images are augmented, in a way that depends on seed, epoch, batch and rank alone.
    """

    def __init__(self, recipe: Recipe, dataset: Dataset, record: Record) -> None:
        super().__init__()
        self.record = record
        limit = recipe.training.limit
        self.train: Examples = dataset.train[:limit] if limit else dataset.train
        self.validation = dataset.validation or dataset.test[:0]
        self.recipe = recipe
        self.size = len(self.train)
        spec = recipe.data
        if spec.augment != "none" and len(dataset.input_shape) != 3:
            raise ValueError(
                f"data.augment is {spec.augment!r}, and {dataset.name} has no images; leave it out"
            )
        self.augment = augmentation(spec.augment, dataset, spec.pad)

    def train_dataloader(self) -> _Epochs:
        trainer = self.trainer
        assert trainer is not None
        batches = Batches(
            self.train,
            self.recipe.training.batch_size,
            seed=self.recipe.seed,
            augment=self.augment,
            rank=trainer.global_rank,
            ranks=trainer.world_size,
        )
        return _Epochs(batches, self.record)

    def val_dataloader(self) -> _InOrder | list[None]:
        if not len(self.validation):
            return []
        return _InOrder(Batches(self.validation, self.recipe.evaluation.batch_size))


class _Epochs:
    """The batches of the epoch that comes after those on record.

    Lightning asks for them before it knows the number of a resumed epoch.
    """

    def __init__(self, batches: Batches, record: Record) -> None:
        self.batches = batches
        self.record = record

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.batches.epoch(len(self.record.rows))


class _InOrder:
    """Every example once."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.batches.in_order()


class LearningRate(L.Callback):
    """Sets the learning rate of an epoch from its number alone: nothing to restore."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        factor = self.recipe.learning_rate(trainer.current_epoch, self.recipe.training.epochs)
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


class Record(L.Callback):
    """A checkpoint and a line of ``metrics.csv`` after every epoch.

    The lines live in the checkpoint, so that both are always of the same epoch.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.rows: list[dict[str, float]] = []
        self.seconds = 0.0
        self._clock = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = list(state_dict["rows"])
        self.seconds = state_dict["seconds"]

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        now = time.monotonic()
        self.seconds, self._clock = self.seconds + now - self._clock, now
        row = {"epoch": float(trainer.current_epoch)}
        row.update({name: float(value) for name, value in trainer.callback_metrics.items()})
        with torch.no_grad():
            row.update({f"kl/{name}": float(v) for name, v in named_kl(pl_module).items()})
        row.update(self._weights(pl_module))
        self.rows.append(row)
        path = self.checkpoints / f"epoch-{trainer.current_epoch:05d}.ckpt"
        trainer.save_checkpoint(path)
        if trainer.is_global_zero:
            self._write_metrics()
            for old in self._all()[:-KEPT_CHECKPOINTS]:
                old.unlink()

    @staticmethod
    def _weights(model: torch.nn.Module) -> dict[str, float]:
        """Mean standard deviations, and quartiles of log α where there is Gaussian dropout."""
        row = {f"scale/{name}": mean for name, mean in mean_scales(model).items()}
        for name, values in log_alphas(model).items():
            low, median, high = quartiles(values)
            row[f"log_alpha/{name}"] = median
            row[f"log_alpha_q25/{name}"], row[f"log_alpha_q75/{name}"] = low, high
        return row

    def _all(self) -> list[Path]:
        return sorted(self.checkpoints.glob("epoch-*.ckpt"))

    def last(self) -> Path | None:
        """The newest checkpoint that can be read; a damaged one is set aside, and said so."""
        for path in reversed(self._all()):
            try:
                torch.load(path, map_location="cpu", weights_only=True)
            except (RuntimeError, OSError, EOFError, ValueError) as error:
                reason = str(error).splitlines()[0]
                warnings.warn(
                    f"{path} is damaged ({reason}); going on from the one before", stacklevel=2
                )
                if getattr(rank_zero_only, "rank", 0) == 0:
                    os.replace(path, path.with_suffix(".damaged"))
            else:
                return path
        return None

    def _write_metrics(self) -> None:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(self.rows)
        write_text(self.folder / "metrics.csv", text.getvalue())
