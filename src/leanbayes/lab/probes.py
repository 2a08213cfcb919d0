"""Measurements in the midst of a run: signal-to-noise ratios and the −ELBO at given steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch

from leanbayes.errors import nearest
from leanbayes.gradient_snr import Average, Definition
from leanbayes.lab.data import Batches
from leanbayes.lab.recipe import Probe as Spec
from leanbayes.lightning import BayesianModule, RecordSNR

__all__ = ["Probe"]

_DEFINITIONS: tuple[Definition, ...] = ("gradient", "square")
_AVERAGES: tuple[Average, ...] = ("median", "pooled")


class Probe(RecordSNR):
    """Measures at the steps of a recipe's ``probe``; what it found lies in every checkpoint.

    The noise of a measurement does not change that of the training.

    Args:
        spec: steps, layer and window.
        validation: what the −ELBO is taken on.

    Attributes:
        found: the −ELBO and the ratios of every layer, by step; a ratio is ``None`` where
            gradients are the same in the whole window, so that it is not finite.
    """

    def __init__(self, spec: Spec, validation: Batches) -> None:
        super().__init__(at=spec.steps, window=spec.window)
        self.layer = spec.layer
        self.validation = validation
        self.found: dict[int, dict[str, Any]] = {}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "found": self.found}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.found = dict(state_dict["found"])

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        assert self._snr is not None
        layers = self._snr.values()
        if self.layer not in layers:
            raise ValueError(f"probe.layer {self.layer!r} is unknown{nearest(self.layer, layers)}")

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if not self._is_due(trainer.global_step):
            return
        assert isinstance(pl_module, BayesianModule)
        assert self._snr is not None
        snr: dict[str, Any] = {name: _finite(self._snr.values(name)) for name in _DEFINITIONS}
        for average in _AVERAGES:
            snr[average] = _finite(self._snr.values(average=average))
        elbo = self._negative_elbo(pl_module)
        self.found[trainer.global_step] = {"negative_elbo": elbo, "snr": snr}

    @torch.no_grad()
    def _negative_elbo(self, module: BayesianModule) -> float:
        """Per validation example, with the whole KL."""
        total = 0.0
        with torch.random.fork_rng(devices=[]):
            for batch in self.validation.in_order():
                parts = module.objective((batch[0].to(module.device), batch[1].to(module.device)))
                total += len(batch[1]) * float(parts.nll + parts.kl)
        return total / len(self.validation.examples)

    def metrics(self) -> dict[str, dict[str, float]]:
        """What goes into the result, by step: the −ELBO, and the ratio by every average."""
        values: dict[str, float | None] = {}
        for step, found in self.found.items():
            values[f"snr_{step}"] = found["snr"]["gradient"][self.layer]
            for average in _AVERAGES:
                values[f"snr_{average}_{step}"] = found["snr"][average][self.layer]
            values[f"negative_elbo_{step}"] = found["negative_elbo"]
        return {
            name: {"value": value, "error": 0.0}
            for name, value in values.items()
            if value is not None
        }


def _finite(ratios: Mapping[str, float]) -> dict[str, float | None]:
    """Strict JSON has no infinity."""
    return {name: ratio if math.isfinite(ratio) else None for name, ratio in ratios.items()}
