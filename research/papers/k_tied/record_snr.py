"""Lightning callback that records the signal-to-noise ratio of gradients at chosen steps."""

from collections.abc import Collection
from typing import Any

import lightning as L
from torch.optim import Optimizer

from leanbayes.errors import require
from leanbayes.lightning import BayesianModule
from research.papers.k_tied.gradient_snr import GradientSNR


class RecordSNR(L.Callback):
    """Records the signal-to-noise ratio of gradients at chosen steps [k-tied, figure 2].

    Gradients are kept in the last ``window`` optimizer steps before a record alone, before they
    are clipped. Loggers get ``snr/<layer>``. A checkpoint holds the history and, within a window,
    the gradients: a resumed run has the same records.

    Args:
        every: record at multiples of so many steps.
        at: record at these steps instead.
        window: how many gradients a ratio is made of; no record comes before so many steps.
        **options: of :class:`GradientSNR`.

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
