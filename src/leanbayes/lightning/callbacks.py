"""Callbacks that work without the laboratory."""

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from leanbayes.errors import NonFiniteLossError, require
from leanbayes.models.random_maps import random_maps, update_priors


class PriorUpdates(L.Callback):
    """Sets :class:`~leanbayes.priors.GroupARD` priors by their block updates every so many steps.

    Every rank computes them from the same parameters, so that the ranks agree.

    Args:
        every: steps between updates.
        rounds: rounds of the block updates each time.

    Raises:
        ValueError: If ``every`` is below 1.
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
    """Return the first number that is not finite: a parameter, or the KL of a layer.

    Args:
        model: Any model.

    Returns:
        The name, with a verb.
    """
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
