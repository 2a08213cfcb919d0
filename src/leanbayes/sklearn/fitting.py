"""Fitting: Adam on the ELBO of weighted rows, in plain torch, repeatable by a seed."""

import copy
import math
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from leanbayes.errors import require, require_count, require_positive
from leanbayes.likelihoods import Likelihood
from leanbayes.likelihoods.mixtures import log_mean
from leanbayes.models.members import members, tile
from leanbayes.models.model_kl import kl
from leanbayes.prediction.predict import predict
from leanbayes.prediction.seeded import noise_by
from leanbayes.sklearn.training_table import WeightedRows
from leanbayes.training.objective import elbo
from leanbayes.training.schedules import LinearRamp

_STEPS_PER_ROW, _FEWEST_STEPS, _MOST_STEPS, _FEWEST_EPOCHS = 6, 150, 10_000, 20
_SMALL_BATCH, _LARGE_BATCH, _BATCHES = 200, 1000, 40
_VALIDATIONS = 100
_VALIDATION_SAMPLES = 10


class NonFiniteFitError(RuntimeError):
    """The loss became NaN or infinite while an estimator was fitted."""


@dataclass(frozen=True)
class FitSettings:
    """How an estimator is fitted, as the parameters of its class say."""

    epochs: int | None
    batch_size: int | None
    learning_rate: float
    kl_weight: float
    kl_warmup: float
    early_stopping: bool
    validation_fraction: float
    n_iter_no_change: int

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1)):
            value = getattr(self, name)
            if value is not None:
                require_count(name, value, least)
        require_count("n_iter_no_change", self.n_iter_no_change, 1)
        require_positive(learning_rate=self.learning_rate)
        require(
            0 <= self.kl_weight < math.inf,
            f"kl_weight is {self.kl_weight}; it must not be negative",
        )
        require(0 <= self.kl_warmup <= 1, f"kl_warmup is {self.kl_warmup}; it is from 0 to 1")

    def batches(self, rows: int) -> int:
        """How many steps an epoch has."""
        planned = min(max(_SMALL_BATCH, rows // _BATCHES), _LARGE_BATCH)
        return -(-rows // (self.batch_size or planned))

    def planned_epochs(self, rows: int) -> int:
        """How many epochs a fit has, for so many distinct rows."""
        if self.epochs is not None:
            return self.epochs
        steps = min(max(_STEPS_PER_ROW * rows, _FEWEST_STEPS), _MOST_STEPS)
        return max(-(-steps // self.batches(rows)), _FEWEST_EPOCHS)


class Fitted:
    """Networks that are being fitted, and all that further fitting needs."""

    def __init__(
        self,
        networks: nn.ModuleList,
        likelihood: Likelihood,
        seed: int,
        largest_gradient: float | None = None,
    ) -> None:
        self.networks, self.likelihood, self.seed = networks, likelihood, seed
        self.largest_gradient = largest_gradient
        self.members = [members(network) for network in networks]
        self.optimizer = self._new_optimizer()
        self.epochs, self.rows_seen = 0, 0.0
        self.losses: list[float] = []
        self.validation_scores: list[float] = []

    def _new_optimizer(self) -> torch.optim.Adam:
        return torch.optim.Adam(self._parameters(), fused=True)

    def _parameters(self) -> list[nn.Parameter]:
        return [*self.networks.parameters(), *self.likelihood.parameters()]

    def fit(self, rows: WeightedRows, settings: FitSettings) -> None:
        """All epochs, with a new optimiser; the learning rate falls to zero."""
        self.optimizer, self.rows_seen = self._new_optimizer(), rows.total
        self.epochs, self.losses, self.validation_scores = 0, [], []
        validation = None
        if settings.early_stopping:
            rows, validation = rows.split(settings.validation_fraction, self.seed)
        watch = _Watch(self, validation, settings.n_iter_no_change)
        epochs = settings.planned_epochs(len(rows))
        every = -(-epochs // _VALIDATIONS)
        with self._noise():
            for epoch in range(epochs):
                self._epoch(rows, settings, rows.total, (epoch, epochs))
                if validation is not None and (epoch + 1) % every == 0 and watch.is_over():
                    break
        watch.finish()

    def update(self, rows: WeightedRows, settings: FitSettings, data_size: float | None) -> None:
        """One epoch over rows that are more of the data."""
        self.rows_seen += rows.total
        with self._noise():
            self._epoch(rows, settings, data_size or self.rows_seen, None)

    def _noise(self) -> AbstractContextManager[object]:
        return noise_by(_mixed(self.seed, self.epochs), self.networks)

    def _epoch(
        self,
        rows: WeightedRows,
        settings: FitSettings,
        data_size: float,
        place: tuple[int, int] | None,
    ) -> None:
        """See every row once; ``place`` is the number of the epoch, and of all of them."""
        shuffled = np.random.RandomState(_mixed(self.seed, self.epochs) % 2**32)
        order = torch.as_tensor(shuffled.permutation(len(rows)))
        batches = order.tensor_split(settings.batches(len(rows)))
        total = torch.zeros(())
        for number, index in enumerate(batches):
            done = 0.0 if place is None else (place[0] + number / len(batches)) / place[1]
            falls = 1.0 if place is None else 0.5 + 0.5 * math.cos(math.pi * done)
            ramp = 1.0 if place is None else _ramp(settings.kl_warmup, done)
            for group in self.optimizer.param_groups:
                group["lr"] = settings.learning_rate * falls
            total += self._step(rows, index, data_size, settings.kl_weight * ramp) * len(index)
        self.epochs += 1
        self.losses.append(float(total) / len(rows))
        if not math.isfinite(self.losses[-1]):
            raise NonFiniteFitError(
                f"the loss is {self.losses[-1]} in epoch {self.epochs}; lower learning_rate, or "
                "look for extreme values in the table"
            )

    def _step(self, rows: WeightedRows, index: Tensor, data_size: float, weight: float) -> Tensor:
        x, y, w = rows.x[index], rows.y[index], rows.weight[index]
        losses = []
        for network, count in zip(self.networks, self.members, strict=True):
            outputs = network(tile(x, count) if count > 1 else x)
            if count > 1:
                outputs = outputs.unflatten(0, (count, len(x)))
            nll = -(w * self.likelihood.log_prob(outputs, y)).mean()
            losses.append(elbo(nll, kl(network), data_size=data_size, weight=weight).loss)
        loss = torch.stack(losses).sum()
        self.optimizer.zero_grad()
        loss.backward()
        if self.largest_gradient is not None:
            nn.utils.clip_grad_norm_(self._parameters(), self.largest_gradient)
        self.optimizer.step()
        return loss.detach() / len(losses)


class _Watch:
    """Looks at held-out rows and keeps the state that predicted them best."""

    def __init__(self, fitted: Fitted, rows: WeightedRows | None, patience: int) -> None:
        self.fitted, self.rows, self.patience = fitted, rows, patience
        self._best, self._waited, self._state = -math.inf, 0, self._now()

    def is_over(self) -> bool:
        """Validate once; true when it has not become better for long."""
        assert self.rows is not None
        score = self.fitted_score(self.rows)
        self.fitted.validation_scores.append(score)
        if score > self._best:
            self._best, self._waited, self._state = score, 0, self._now()
        else:
            self._waited += 1
        return self._waited >= self.patience

    def fitted_score(self, rows: WeightedRows) -> float:
        """The mean log predictive density of a row."""
        samples = [
            predict(network, rows.x, samples=_VALIDATION_SAMPLES, seed=self.fitted.seed).samples
            for network in self.fitted.networks
        ]
        with torch.no_grad():
            mixed = log_mean(self.fitted.likelihood.log_prob(torch.cat(samples), rows.y))
            return float((rows.weight * mixed).mean())

    def finish(self) -> None:
        """Give the best state back."""
        if self.fitted.validation_scores and self.rows is not None:
            for module, state in zip(self._modules(), self._state, strict=True):
                module.load_state_dict(state)

    def _modules(self) -> tuple[nn.Module, ...]:
        return self.fitted.networks, self.fitted.likelihood

    def _now(self) -> list[dict[str, Tensor]]:
        if self.rows is None:
            return []
        return [copy.deepcopy(module.state_dict()) for module in self._modules()]


def _ramp(warmup: float, done: float) -> float:
    return LinearRamp(warmup)(done) if warmup else 1.0


def _mixed(seed: int, epoch: int) -> int:
    return (seed * 1_000_003 + epoch) % 2**63
