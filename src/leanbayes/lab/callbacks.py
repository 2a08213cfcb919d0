"""What Lightning is given for a run: batches by epoch, and what to do on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import lightning as L
from leanbayes.analysis.log_alpha import quartiles
from leanbayes.errors import nearest, require
from leanbayes.lab.data import Batches, augmentation
from leanbayes.lab.phases import four_accuracies
from leanbayes.lab.recipe import Probe, Recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.sparse_curves import sparse_curves
from leanbayes.lab.weights import log_alphas, mean_scales
from leanbayes.lightning import BayesianModule, RecordSNR
from leanbayes.models.model_kl import named_kl
from leanbayes.training.gradient_snr import Average, Definition

__all__ = ["FollowLearningRate", "MeasureSteps", "Record", "RunData"]

_DEFINITIONS: tuple[Definition, ...] = ("gradient", "square")
_AVERAGES: tuple[Average, ...] = ("median", "pooled")


class RunData(L.LightningDataModule):
    """Batches whose order depends on seed and epoch; every rank takes its part.

    Only training images are augmented, in a way that depends on seed, epoch, batch and rank alone.

    Args:
        run: whose data.
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

    def validation_batches(self) -> Batches:
        """What is not learnt from."""
        return Batches(self.validation, self.recipe.evaluation.batch_size)

    def val_dataloader(self) -> _Loader | list[None]:
        if not len(self.validation):
            return []
        batches = self.validation_batches()
        return _Loader(len(batches), batches.in_order)


class _Loader:
    """Batches that are asked for anew in every epoch.

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
    """Images in the memory format of the filters that ``build_model`` makes."""
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

    def __init__(self, run: Run) -> None:
        self.run = run
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
        epoch = float(trainer.current_epoch)
        self.rows.append(
            {"epoch": epoch, **metrics, **_of_layers(pl_module), **self._on_test(pl_module)}
        )
        trainer.save_checkpoint(self.run.checkpoints.path(trainer.current_epoch))
        if trainer.is_global_zero:
            self.run.write_metrics(self.rows)
            self.run.checkpoints.drop_old()

    def _on_test(self, module: L.LightningModule) -> dict[str, float]:
        """What the recipe asks for after every epoch: four accuracies, or how sparse it is."""
        recipe, drawing = self.run.recipe, self.run.drawing()
        if recipe.phases is None and recipe.sparse_curves is None:
            return {}
        assert isinstance(module, BayesianModule)
        test, seed, size = self.run.dataset.test, drawing["seed"], drawing["batch_size"]
        row: dict[str, float] = {}
        if recipe.phases is not None:
            row |= four_accuracies(module.model, test, recipe.phases, seed=seed, batch_size=size)
        if recipe.sparse_curves is not None:
            row |= sparse_curves(
                module.model,
                test,
                module.likelihood,
                recipe.sparse_curves,
                data_size=self.run.data_size,
                seed=seed,
                batch_size=size,
            )
        return row


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


class MeasureSteps(RecordSNR):
    """Signal-to-noise ratios and the −ELBO at the steps of a recipe's ``probe``.

    What was measured lies in every checkpoint. The noise of a measurement does not change that of
    the training.

    Args:
        spec: steps, layer and window.
        validation: what the −ELBO is taken on.

    Attributes:
        by_step: the −ELBO and the ratios of every layer, by step; a ratio is ``None`` where
            gradients are the same in the whole window, so that it is not finite.
    """

    def __init__(self, spec: Probe, validation: Batches) -> None:
        super().__init__(at=spec.steps, window=spec.window)
        self.layer, self.validation = spec.layer, validation
        self.by_step: dict[int, dict[str, Any]] = {}

    @property
    def state_key(self) -> str:
        """The name it has in checkpoints."""
        return "Probe"

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "found": self.by_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.by_step = dict(state_dict["found"])

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        assert self._snr is not None
        layers = self._snr.values()
        if self.layer not in layers:
            raise ValueError(f"probe.layer {self.layer!r} is unknown{nearest(self.layer, layers)}")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any, **__: Any
    ) -> None:
        if not self._is_due(trainer.global_step):
            return
        assert isinstance(pl_module, BayesianModule)
        assert self._snr is not None
        ratios: dict[str, dict[str, float]] = {n: self._snr.values(n) for n in _DEFINITIONS}
        ratios |= {average: self._snr.values(average=average) for average in _AVERAGES}
        self.by_step[trainer.global_step] = {
            "negative_elbo": self._negative_elbo(pl_module),
            "snr": {name: _finite(by_layer) for name, by_layer in ratios.items()},
        }

    @torch.no_grad()
    def _negative_elbo(self, module: BayesianModule) -> float:
        """Per validation example, with the whole KL."""
        total = 0.0
        with torch.random.fork_rng(devices=[]):
            for x, y in self.validation.in_order():
                parts = module.objective((x.to(module.device), y.to(module.device)))
                total += len(y) * float(parts.nll + parts.kl)
        return total / len(self.validation.examples)

    def metrics(self) -> dict[str, dict[str, float]]:
        """What goes into the result, by step: the −ELBO, and the ratio by every average."""
        values: dict[str, float | None] = {}
        for step, measured in self.by_step.items():
            values[f"snr_{step}"] = measured["snr"]["gradient"][self.layer]
            for average in _AVERAGES:
                values[f"snr_{average}_{step}"] = measured["snr"][average][self.layer]
            values[f"negative_elbo_{step}"] = measured["negative_elbo"]
        return {n: {"value": v, "error": 0.0} for n, v in values.items() if v is not None}


def _finite(ratios: Mapping[str, float]) -> dict[str, float | None]:
    """Strict JSON has no infinity."""
    return {name: ratio if math.isfinite(ratio) else None for name, ratio in ratios.items()}
