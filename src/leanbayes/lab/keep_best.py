"""The weights of the best epoch, for runs that end with them instead of the last ones."""

import math
from typing import Any

import lightning as L
from torch import Tensor

from leanbayes.parameters.learned import from_version_1


class KeepBest(L.Callback):
    """Keeps what the model was after the epoch with the least NLL of validation examples.

    It lies in every checkpoint, so that a run that is stopped and resumed ends with the same.

    Attributes:
        epoch: which it was, counted from 0; −1 before the first.
        nll: of the validation examples then.
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
