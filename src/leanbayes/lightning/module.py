"""The ELBO as a LightningModule, and callbacks that work without the laboratory.

The noise of epoch *e* on rank *r* depends on (seed, e, r) alone. So a run that is resumed at an
epoch ends like an uninterrupted one.
"""

import copy
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from leanbayes.errors import LoadError, NonFiniteLossError, require
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.models.random_maps import random_maps, update_priors
from leanbayes.prediction.predict import Prediction
from leanbayes.saving.io import described, rebuilt
from leanbayes.training.objective import BatchObjective, Elbo, mixture_nll
from leanbayes.training.parameter_groups import parameter_groups
from leanbayes.training.schedules import SCHEDULES, Constant, Schedule

Batch = Tensor | Mapping[str, Tensor] | Sequence[Any]
"""A tensor, a pair ``(x, y)`` or a dictionary."""

_KEY = "leanbayes"
"""Under which a checkpoint says how its model was made."""

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
        """Return the averages and over how many examples; then start again."""
        averages, size = {n: total / self._size for n, total in self._totals.items()}, self._size
        self._totals, self._size = {}, 0
        return averages, size


class BayesianModule(L.LightningModule):
    """A LightningModule that trains a converted model on its ELBO.

    Under DDP every rank draws its own noise, and the averaged gradient holds the KL once. A batch
    is a pair ``(x, y)``, or a dictionary whose other entries are the model's keywords. Loggers get
    the options that are numbers or specs as hyper-parameters.

    Args:
        model: a converted model.
        data_size: number of training examples, over all ranks.
        likelihood: likelihood of the outputs; categorical if not given.
        schedule: the weight of the KL.
        count: whether the schedule counts training steps or epochs.
        lr: learning rate, of the default Adam or as given to ``optimizer`` in parameter groups.
        optimizer: makes an optimizer from parameter groups.
        scheduler: makes a learning-rate schedule, stepped once an epoch.
        groups: makes the parameter groups from the model; by default one learning rate for all.
        train_samples: draws in each training step.
        loss: summary of the NLLs of draws and members: their ``"average"`` [rank-1, eq. 13],
            of which the ELBO is made, or that of their ``"mixture"`` [rank-1, eq. 14].
        validation_samples: draws of which validation takes the mixture.
        samples: draws of a prediction and of a test.
        batch_dim: dimension of the inputs that counts examples: 1 for ``[time, batch, …]``.
        target: the key of targets in batches that are dictionaries.
        output: from what the model gives to the tensor that the likelihood is about; by default
            that tensor itself, or its ``logits``.
        seed: seed of the noise.

    Raises:
        ValueError: If ``count`` is unknown.

    Example:
        >>> import leanbayes as lb
        >>> net = lb.convert(nn.Linear(3, 2), lb.KTied(2), lb.priors.Normal(1.0))
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
        samples: int = 100,
        batch_dim: int = 0,
        target: str = "labels",
        output: Callable[[Any], Tensor] | None = None,
        seed: int = 42,
    ) -> None:
        super().__init__()
        require(count in ("step", "epoch"), f"count is {count!r}; it is 'step' or 'epoch'")
        self.model, self.data_size = model, data_size
        self.likelihood = likelihood or Categorical()
        self.schedule, self.count = schedule or Constant(), count
        self.lr, self.seed = lr, seed
        self.train_samples, self.validation_samples = train_samples, validation_samples
        self.loss: Literal["average", "mixture"] = loss
        self.samples, self.batch_dim = samples, batch_dim
        self.target, self.output = target, output
        self._make_optimizer, self._make_scheduler = optimizer, scheduler
        self._make_groups = groups
        self._made_objective = BatchObjective(model, self.likelihood, data_size, loss=loss)
        self._scores, self._weights = _Running(), _Running()
        self.save_hyperparameters(self._options() | _families(model))

    def _options(self) -> dict[str, Any]:
        """Return what a logger shows and a checkpoint remembers: numbers and words."""
        names = ("data_size", "count", "lr", "train_samples", "validation_samples", "samples")
        numbers = {name: getattr(self, name) for name in (*names, "batch_dim", "target", "seed")}
        return numbers | {"schedule": repr(self.schedule), "likelihood": repr(self.likelihood)}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.model(*inputs, **named)

    @property
    def kl_weight(self) -> float:
        """The weight of the KL at this step or epoch."""
        if self._trainer is None:
            return self.schedule(0)
        return self.schedule(self.global_step if self.count == "step" else self.current_epoch)

    @property
    def _objective(self) -> BatchObjective:
        """The objective with the options of now, which a user may have changed."""
        made = self._made_objective
        made.model, made.likelihood, made.data_size = self.model, self.likelihood, self.data_size
        made.samples, made.loss = self.train_samples, self.loss
        made.batch_dim, made.target, made.output = self.batch_dim, self.target, self.output
        return made

    def objective(self, batch: Batch) -> Elbo:
        """Return the ELBO of one batch by ``train_samples`` draws; members see all or a share."""
        return self._objective(batch, self.kl_weight)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        parts = self.objective(batch)
        values = {"nll": parts.nll, "kl": parts.kl, "negative_elbo": parts.nll + parts.kl}
        self._scores.add(values, self._objective.size_of(batch))
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
        self._judge("validation", batch, self.validation_samples)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._judge("test", batch, self.samples)

    def predict_step(self, batch: Batch, batch_idx: int) -> Prediction:
        """Return the prediction of a batch; a target in it is not looked at."""
        return self._objective.predict(batch, self.samples)

    def _judge(self, stage: str, batch: Batch, samples: int) -> None:
        """Log how good the mixture of samples is on a batch, and what its ELBO would be."""
        objective = self._objective
        y, outputs = objective.targets(batch), objective.predict(batch, samples).samples
        values = {
            "nll": mixture_nll(outputs, y, self.likelihood),
            "negative_elbo": self.likelihood.nll(outputs, y)
            + objective.model_kl() / self.data_size,
        }
        if self.likelihood.has_classes(outputs):
            values["accuracy"] = (self.likelihood.labels(outputs) == y).float().mean()
        self._log(stage, values, len(y))

    def _log(self, stage: str, values: dict[str, Tensor], size: int) -> None:
        for name, value in values.items():
            shown = (stage, name) == ("validation", "nll")
            self.log(
                f"{stage}/{name}",
                value.detach(),
                prog_bar=shown,
                on_step=False,
                on_epoch=True,
                batch_size=size,
                sync_dist=True,
            )

    def on_train_epoch_start(self) -> None:
        """Seed the noise by seed, epoch and rank alone."""
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

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remember how the model and the likelihood were made, for :meth:`from_checkpoint`."""
        random = any(True for _ in random_maps(self.model))
        made: dict[str, Any] = {"layers": described(self.model) if random else {}}
        made |= {"likelihood": self.likelihood.to_dict(), "schedule": _schedule(self.schedule)}
        checkpoint[_KEY] = json.dumps(made)

    @classmethod
    def from_checkpoint(cls, net: nn.Module, path: str | os.PathLike[str], **options: Any) -> Self:
        """Load the module of a checkpoint, with its trained numbers, to predict, test or resume.

        Args:
            net: the deterministic network that was converted, with any weights; it stays as it is.
            path: a checkpoint that Lightning wrote.
            **options: options of the module, by default those of the checkpoint. Give functions
                again: a checkpoint does not hold them.
        """
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if _KEY not in checkpoint:
            raise LoadError(f"{path} was not written by a BayesianModule of this version")
        made = json.loads(checkpoint[_KEY])
        model = rebuilt(net, made["layers"]) if made["layers"] else copy.deepcopy(net)
        known = inspect.signature(cls).parameters.keys() - {"schedule", "likelihood"}
        numbers = {k: v for k, v in checkpoint["hyper_parameters"].items() if k in known}
        if made["schedule"] is not None:
            kind, arguments = made["schedule"]
            numbers["schedule"] = SCHEDULES[kind](**arguments)
        numbers["likelihood"] = Likelihood.from_dict(made["likelihood"])
        module = cls(model, **{**numbers, **options})
        module.load_state_dict(checkpoint["state_dict"])
        return module


def _schedule(schedule: Schedule) -> tuple[str, dict[str, Any]] | None:
    """The name and the arguments of a registered schedule; a function of your own has none."""
    names = [name for name, kind in SCHEDULES.items() if type(schedule) is kind]
    return (names[0], vars(schedule)) if names else None


def _families(model: nn.Module) -> dict[str, str]:
    """Return the posteriors and priors of a model, each named once."""
    maps = [layer for _, layer in random_maps(model)]
    specs = {
        "posterior": [layer.posterior.spec for layer in maps],
        "prior": [layer.prior.spec for layer in maps],
    }
    return {name: ", ".join(dict.fromkeys(map(repr, given))) for name, given in specs.items()}


class PriorUpdates(L.Callback):
    """A callback that sets :class:`~leanbayes.priors.GroupARD` priors by block updates.

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
    """A callback that stops at a loss or at weights that are not finite.

    So neither a checkpoint nor the trained model holds numbers that are not finite.
    """

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        if not bool(loss.isfinite()):
            raise NonFiniteLossError(
                f"the loss is {float(loss.detach())} in epoch {trainer.current_epoch}, step "
                f"{trainer.global_step}; {_non_finite(pl_module) or _ELSEWHERE}"
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


_ELSEWHERE = "parameters and KLs are finite, so it comes from the inputs or the likelihood"


@torch.no_grad()
def _non_finite(model: nn.Module) -> str | None:
    """Return the first parameter, or KL of a layer, that is not finite."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            return f"parameter {name!r} is not finite"
    for name, layer in random_maps(model):
        if not bool(layer.kl().isfinite()):
            return f"the KL of layer {name!r} is not finite"
    return None
