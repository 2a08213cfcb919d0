"""Callbacks that work without the laboratory."""

from collections.abc import Collection
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leanbayes.errors import NonFiniteLossError, require
from leanbayes.lightning.module import BayesianModule
from leanbayes.models.map_posteriors import update_priors
from leanbayes.models.random_maps import random_maps
from leanbayes.training.gradient_snr import GradientSNR


class PriorUpdates(L.Callback):
    """Sets :class:`~leanbayes.priors.GroupARD` priors by their block updates every so many steps.

    Every rank computes them from the same parameters, so that the ranks agree.

    Args:
        every: steps between updates.
        rounds: rounds of the block updates each time.
    """

    def __init__(self, every: int = 1, rounds: int = 1) -> None:
        require(every >= 1, f"every is {every}; it must be at least 1")
        self.every, self.rounds = every, rounds

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if trainer.global_step % self.every == 0:
            update_priors(pl_module, self.rounds)


class RecordSNR(L.Callback):
    """Records the signal-to-noise ratio of gradients at chosen steps [k-tied, figure 2].

    Gradients are kept in the last ``window`` optimiser steps before a record alone, before they
    are clipped. Loggers get ``snr/<layer>``. A checkpoint holds the history and, within a window,
    the gradients: a resumed run has the same records.

    Args:
        every: record at multiples of so many steps.
        at: record at these steps instead.
        window: how many gradients a ratio is made of; no record comes before so many steps.
        **options: of :class:`~leanbayes.training.GradientSNR`.

    Attributes:
        history: ``(step, {layer: ratio})`` of every record.
    """

    def __init__(
        self,
        every: int | None = None,
        *,
        at: Collection[int] | None = None,
        window: int = 10,
        **options: Any,
    ) -> None:
        require((every is None) != (at is None), "give either every or at, the steps to record")
        require(every is None or every >= 1, f"every is {every}; it must be at least 1")
        self.every, self.at = every, frozenset(at or ())
        self.window, self.options = window, options
        self.history: list[tuple[int, dict[str, float]]] = []
        self._snr: GradientSNR | None = None
        self._recorded: dict[str, Any] = {}

    def _is_due(self, step: int) -> bool:
        return step in self.at if self.every is None else step % self.every == 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        model = pl_module.model if isinstance(pl_module, BayesianModule) else pl_module
        self._snr = GradientSNR(model, self.window, **self.options)
        if self._recorded:
            self._snr.load_state_dict(self._recorded)

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        assert self._snr is not None
        step = trainer.global_step + 1
        if not any(self._is_due(step + later) for later in range(self.window)):
            self._snr.reset()
            return
        self._snr.update()
        if self._is_due(step) and self._snr.steps >= self.window:
            values = self._snr.values()
            self.history.append((step, values))
            for logger in trainer.loggers:
                logger.log_metrics({f"snr/{name}": v for name, v in values.items()}, step=step)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._recorded = self._snr.state_dict() if self._snr else {}
        self._snr = None

    def state_dict(self) -> dict[str, Any]:
        recorded = self._snr.state_dict() if self._snr else self._recorded
        return {"history": self.history, "recorded": recorded}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = [(int(step), dict(values)) for step, values in state_dict["history"]]
        self._recorded = dict(state_dict["recorded"])


class StopOnNonFinite(L.Callback):
    """Stops at a loss that is not finite, and after an epoch whose last step spoilt the weights.

    So neither a checkpoint nor the trained model holds numbers that are not finite.
    """

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        if not bool(loss.isfinite()):
            raise NonFiniteLossError(
                f"the loss is {float(loss.detach())} in epoch {trainer.current_epoch}, step "
                f"{trainer.global_step}; {first_non_finite(pl_module)}"
            )

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any, **__: Any
    ) -> None:
        if trainer.is_last_batch:  # validation comes next
            self.on_train_epoch_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        where = _non_finite(pl_module)
        if where is not None:
            raise NonFiniteLossError(
                f"the last step of epoch {trainer.current_epoch} went too far; {where}"
            )


def first_non_finite(model: nn.Module) -> str:
    """Where a number that is not finite shows first: a parameter, or the KL of a layer."""
    inputs = "parameters and KLs are finite, so it comes from the inputs or the likelihood"
    return _non_finite(model) or inputs


@torch.no_grad()
def _non_finite(model: nn.Module) -> str | None:
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            return f"parameter {name!r} is not finite"
    for name, layer in random_maps(model):
        if not bool(layer.kl().isfinite()):
            return f"the KL of layer {name!r} is not finite"
    return None
