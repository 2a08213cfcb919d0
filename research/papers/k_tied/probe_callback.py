"""Callback of the measurement ``probe``: gradients and the −ELBO at chosen steps."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import lightning as L
import torch
from torch.optim import Optimizer

from leanbayes.errors import nearest
from leanbayes.lab.data import Batches
from leanbayes.lab.measurements.result_callback import ResultCallback
from leanbayes.lightning import BayesianModule
from research.papers.k_tied.gradient_snr import Average, Definition, GradientSNR

_DEFINITIONS: tuple[Definition, ...] = ("gradient", "square")
_AVERAGES: tuple[Average, ...] = ("median", "pooled")


class MeasureSteps(ResultCallback):
    """Signal-to-noise ratios [k-tied, figure 2] and the −ELBO at chosen steps.

    Gradients are kept in the last ``window`` optimizer steps before a record alone, before they
    are clipped. Every checkpoint holds what was measured and, within a window, the gradients: a
    resumed run has the same records. The noise of a measurement does not change that of the
    training.

    Args:
        validation: what the −ELBO is taken on.
        at: the steps.
        layer: whose ratios are metrics of the result.
        window: how many gradients a ratio is made of.

    Attributes:
        by_step: the −ELBO and the ratios of every layer, by step; a ratio is ``None`` where
            gradients are the same in the whole window, so that it is not finite.
    """

    def __init__(
        self, validation: Batches, *, at: Collection[int], layer: str, window: int
    ) -> None:
        self.validation, self.at = validation, frozenset(at)
        self.layer, self.window = layer, window
        self.by_step: dict[int, dict[str, Any]] = {}
        self._snr: GradientSNR | None = None
        self._recorded: dict[str, Any] = {}

    @property
    def state_key(self) -> str:
        """The name it has in checkpoints."""
        return "Probe"

    def state_dict(self) -> dict[str, Any]:
        recorded = self._snr.state_dict() if self._snr else self._recorded
        return {"recorded": recorded, "found": self.by_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._recorded = dict(state_dict["recorded"])
        self.by_step = dict(state_dict["found"])

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, BayesianModule)
        self._snr = GradientSNR(pl_module.model, self.window)
        if self._recorded:
            self._snr.load_state_dict(self._recorded)
        layers = self._snr.values()
        if self.layer not in layers:
            hint = nearest(self.layer, layers)
            raise ValueError(f"layer {self.layer!r} of measurement 'probe' is unknown{hint}")

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        assert self._snr is not None
        step = trainer.global_step + 1
        if self.at.isdisjoint(range(step, step + self.window)):
            self._snr.reset()
        else:
            self._snr.update()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._recorded = self._snr.state_dict() if self._snr else {}
        self._snr = None

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any, **__: Any
    ) -> None:
        if trainer.global_step not in self.at:
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
        """Return what goes into the result, by step: the −ELBO, and the ratio by every average."""
        values: dict[str, float | None] = {}
        for step, measured in self.by_step.items():
            values[f"snr_{step}"] = measured["snr"]["gradient"][self.layer]
            for average in _AVERAGES:
                values[f"snr_{average}_{step}"] = measured["snr"][average][self.layer]
            values[f"negative_elbo_{step}"] = measured["negative_elbo"]
        return {n: {"value": v, "error": 0.0} for n, v in values.items() if v is not None}

    def details(self) -> dict[str, Any]:
        """Return all layers and ratios, by step."""
        return {"probe": {str(step): values for step, values in self.by_step.items()}}


def _finite(ratios: Mapping[str, float]) -> dict[str, float | None]:
    """Strict JSON has no infinity."""
    return {name: ratio if math.isfinite(ratio) else None for name, ratio in ratios.items()}
