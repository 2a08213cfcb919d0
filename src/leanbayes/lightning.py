"""A door to Lightning: the ELBO as a LightningModule, and callbacks that work without the lab.

The noise of epoch *e* on rank *r* depends on (seed, e, r) alone, so that a run that is stopped and
resumed at an epoch ends as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from leanbayes.context import one_pass
from leanbayes.errors import require
from leanbayes.gradient_snr import GradientSNR
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.model import kl, members, random_maps, tile, update_priors
from leanbayes.objective import Elbo, elbo, mixture_nll
from leanbayes.parameters import parameter_groups
from leanbayes.predict import predict, shared_layers
from leanbayes.schedules import Constant, Schedule
from leanbayes.seeding import is_compiled

__all__ = [
    "BayesianModule",
    "NonFiniteLossError",
    "PriorUpdates",
    "RecordSNR",
    "StopOnNonFinite",
    "first_non_finite",
]

Batch = tuple[Tensor, Tensor]


class NonFiniteLossError(RuntimeError):
    """The loss became NaN or infinite; the message names the first layer where it shows.

    Args:
        reason: where it shows, and when.
        remedy: what can be done.
    """

    def __init__(
        self,
        reason: str,
        remedy: str = "Lower the learning rate, clip gradients or start with smaller scales",
    ) -> None:
        super().__init__(f"{reason}. {remedy}")
        self.reason = reason


_HEARD_OF = 50
"""After how many steps Lightning hears of them; that takes as long as a small step itself."""


class _Running:
    """Averages over steps since they were last taken."""

    def __init__(self) -> None:
        self._totals: dict[str, Tensor] = {}
        self._size = 0

    def add(self, values: Mapping[str, Tensor], size: int) -> None:
        """Count the averages over so many examples."""
        for name, value in values.items():
            part = value.detach() * size
            self._totals[name] = self._totals[name] + part if name in self._totals else part
        self._size += size

    def take(self) -> tuple[dict[str, Tensor], int]:
        """The averages and over how many examples; then begin anew."""
        averages, size = {n: total / self._size for n, total in self._totals.items()}, self._size
        self._totals, self._size = {}, 0
        return averages, size


class BayesianModule(L.LightningModule):
    """Trains a converted model on its ELBO.

    Under DDP every rank draws its own noise, and the averaged gradient holds the KL once.

    Args:
        model: a converted model.
        data_size: how many training examples there are, over all ranks.
        likelihood: what the outputs mean; categorical if not given.
        schedule: the weight of the KL.
        count: whether the schedule counts training steps or epochs.
        lr: learning rate, of the default Adam or as given to ``optimizer`` in parameter groups.
        optimizer: makes an optimiser from parameter groups.
        scheduler: makes a learning-rate schedule, stepped once an epoch.
        groups: makes the parameter groups from the model; by default one learning rate for all.
        train_samples: draws in each training step.
        loss: what is taken of the NLLs of draws and members: their ``"average"`` [rank-1, eq. 13],
            of which the ELBO is made, or that of their ``"mixture"`` [rank-1, eq. 14].
        validation_samples: draws of which validation takes the mixture.
        batch_dim: which dimension of the inputs counts examples: 1 for ``[time, batch, …]``.
        seed: seed of the noise.

    Example:
        >>> import leanbayes as lb
        >>> net = lb.convert(nn.Linear(3, 2), lb.KTied(2), lb.Normal(1.0))
        >>> module = BayesianModule(net, data_size=100)
        >>> batch = torch.randn(8, 3), torch.zeros(8, dtype=torch.long)
        >>> module.objective(batch).loss.shape
        torch.Size([])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        data_size: int,
        likelihood: Likelihood | None = None,
        schedule: Schedule | None = None,
        count: Literal["step", "epoch"] = "step",
        lr: float = 1e-3,
        optimizer: Callable[[list[dict[str, Any]]], Optimizer] = torch.optim.Adam,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        groups: Callable[[nn.Module, float], list[dict[str, Any]]] = parameter_groups,
        train_samples: int = 1,
        loss: Literal["average", "mixture"] = "average",
        validation_samples: int = 1,
        batch_dim: int = 0,
        seed: int = 42,
    ) -> None:
        super().__init__()
        require(count in ("step", "epoch"), f"count is {count!r}; it is 'step' or 'epoch'")
        require(loss in ("average", "mixture"), f"loss is {loss!r}; it is 'average' or 'mixture'")
        require(data_size > 0, f"data_size is {data_size}; give the number of training examples")
        self.model, self.data_size = model, data_size
        self.likelihood = likelihood or Categorical()
        self.schedule, self.count = schedule or Constant(), count
        self.lr, self.seed = lr, seed
        self.train_samples, self.validation_samples = train_samples, validation_samples
        self.loss: Literal["average", "mixture"] = loss
        self.batch_dim = batch_dim
        self._make_optimizer, self._make_scheduler = optimizer, scheduler
        self._make_groups = groups
        self._shared: frozenset[nn.Module] | None = None
        self._scores, self._weights = _Running(), _Running()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.model(x)
        return y

    @property
    def kl_weight(self) -> float:
        """The weight of the KL at this step or epoch."""
        if self._trainer is None:
            return self.schedule(0)
        return self.schedule(self.global_step if self.count == "step" else self.current_epoch)

    def model_kl(self) -> Tensor:
        """The KL of the model; zero for a plain network."""
        if any(True for _ in random_maps(self.model)):
            return kl(self.model)
        return next(self.model.parameters()).new_zeros(())

    def objective(self, batch: Batch) -> Elbo:
        """The ELBO of one batch, which every member sees whole, by ``train_samples`` draws."""
        (x, y), count = batch, members(self.model)
        if count > 1:
            x = tile(x, count, self.batch_dim)
        if self._shared is None:
            self._shared = frozenset() if is_compiled(self.model) else shared_layers(self.model, x)
        outputs = []
        for _ in range(self.train_samples):
            with one_pass(shared=self._shared):
                outputs.append(self.model(x))
        nll = self._nll_of(outputs, y, count)
        return elbo(nll, self.model_kl(), data_size=self.data_size, weight=self.kl_weight)

    def _nll_of(self, outputs: list[Tensor], y: Tensor, count: int) -> Tensor:
        """By draws ``[members · batch, …]`` of a batch with these targets."""
        if self.loss == "average":
            tiled = tile(y, count) if count > 1 else y
            return torch.stack([self.likelihood.nll(drawn, tiled) for drawn in outputs]).mean()
        apart = [drawn.unflatten(0, (count, len(y))) for drawn in outputs]
        return mixture_nll(torch.cat(apart), y, self.likelihood)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        parts = self.objective(batch)
        values = {"nll": parts.nll, "kl": parts.kl, "negative_elbo": parts.nll + parts.kl}
        self._scores.add(values, len(batch[1]))
        self._weights.add({"kl_weight": torch.tensor(parts.weight)}, 1)
        if (batch_idx + 1) % _HEARD_OF == 0 or self._may_be_last():
            self._log("train", *self._scores.take())
            averages, steps = self._weights.take()
            self.log_dict(averages, on_step=False, on_epoch=True, batch_size=steps)
        return parts.loss

    def _may_be_last(self) -> bool:
        trainer = self.trainer
        return trainer.is_last_batch or 0 < trainer.max_steps <= trainer.global_step + 1

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        x, y = batch
        samples, dim = self.validation_samples, self.batch_dim
        outputs = predict(self.model, x, samples=samples, batch_dim=dim).samples
        values = {
            "nll": mixture_nll(outputs, y, self.likelihood),
            "negative_elbo": self.likelihood.nll(outputs, y) + self.model_kl() / self.data_size,
        }
        if self.likelihood.has_classes(outputs):
            values["accuracy"] = (self.likelihood.labels(outputs) == y).float().mean()
        self._log("validation", values, len(y))

    def _log(self, stage: str, values: dict[str, Tensor], size: int) -> None:
        named = {f"{stage}/{name}": value.detach() for name, value in values.items()}
        self.log_dict(named, on_step=False, on_epoch=True, batch_size=size, sync_dist=True)

    def on_train_epoch_start(self) -> None:
        """Noise that depends on seed, epoch and rank alone."""
        self._scores, self._weights = _Running(), _Running()
        entropy = (self.seed * 1_000_003 + self.current_epoch) * 1_009 + self.global_rank
        torch.manual_seed(entropy % 2**63)

    def configure_optimizers(self) -> Any:
        groups = self._make_groups(self.model, self.lr)
        extra = list(self.likelihood.parameters())
        if extra:
            groups = [*groups, {"role": "likelihood", "params": extra, "lr": self.lr}]
        optimizer = self._make_optimizer(groups)
        if self._make_scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": self._make_scheduler(optimizer)}


class PriorUpdates(L.Callback):
    """Sets :class:`~leanbayes.GroupARD` priors by their block updates every so many steps.

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
        **options: of :class:`~leanbayes.GradientSNR`.

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
