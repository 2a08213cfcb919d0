"""Measurements in the midst of a run: signal-to-noise ratios and the −ELBO at given steps."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch.optim import Optimizer

from leanbayes.lab.data import Batches
from leanbayes.lab.recipe import Probe as Spec
from leanbayes.lightning import BayesianModule
from leanbayes.recipes import nearest
from leanbayes.snr import Definition, GradientSNR

__all__ = ["Probe"]

_DEFINITIONS: tuple[Definition, ...] = ("gradient", "square")


class Probe(L.Callback):
    """Measures at the steps of a recipe's ``probe``; what it found lies in every checkpoint.

    Gradients are kept only during the window before such a step. The noise of a measurement does
    not change that of the training.

    Args:
        spec: steps, layer and window.
        validation: what the −ELBO is taken on.
    """

    def __init__(self, spec: Spec, validation: Batches) -> None:
        self.spec = spec
        self.validation = validation
        self.found: dict[int, dict[str, Any]] = {}
        self._watch: GradientSNR | None = None
        self._recorded: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"found": self.found, "recorded": self._watch.state_dict() if self._watch else {}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.found = dict(state_dict["found"])
        self._recorded = dict(state_dict["recorded"])
        if self._watch and self._recorded:
            self._watch.load_state_dict(self._recorded)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, BayesianModule)
        self._watch = GradientSNR(pl_module.model, self.spec.window)
        layers = self._watch.values()
        if self.spec.layer not in layers:
            raise ValueError(
                f"probe.layer {self.spec.layer!r} is unknown{nearest(self.spec.layer, layers)}"
            )
        if self._recorded:
            self._watch.load_state_dict(self._recorded)

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        step = trainer.global_step + 1
        assert self._watch is not None
        if any(0 <= measured - step < self.spec.window for measured in self.spec.steps):
            self._watch.update()

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        step = trainer.global_step
        if step not in self.spec.steps:
            return
        assert isinstance(pl_module, BayesianModule)
        assert self._watch is not None
        snr: dict[str, Any] = {name: self._watch.values(name) for name in _DEFINITIONS}
        snr["median"] = self._watch.values(median=True)
        self.found[step] = {"negative_elbo": self._negative_elbo(pl_module), "snr": snr}
        self._watch.reset()

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
        """What goes into the result: ``snr_STEP``, its median, and ``negative_elbo_STEP``."""
        values = {}
        for step, found in self.found.items():
            values[f"snr_{step}"] = found["snr"]["gradient"][self.spec.layer]
            values[f"snr_median_{step}"] = found["snr"]["median"][self.spec.layer]
            values[f"negative_elbo_{step}"] = found["negative_elbo"]
        return {name: {"value": value, "error": 0.0} for name, value in values.items()}
