"""Fitting: how estimators call the training loop, once or row by row."""

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leanbayes.errors import NonFiniteLossError, require_count, require_positive
from leanbayes.likelihoods import Likelihood
from leanbayes.models.ensemble import DeepEnsemble
from leanbayes.models.members import members
from leanbayes.sklearn.training_table import WeightedRows
from leanbayes.training.fit import fit
from leanbayes.training.history import History

_STEPS_PER_ROW, _FEWEST_STEPS, _MOST_STEPS, _FEWEST_EPOCHS = 6, 150, 10_000, 20
_SMALL_BATCH, _LARGE_BATCH, _BATCHES = 200, 1000, 40


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
    verbose: bool

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1)):
            value = getattr(self, name)
            if value is not None:
                require_count(name, value, least)
        require_count("n_iter_no_change", self.n_iter_no_change, 1)
        require_positive(learning_rate=self.learning_rate)

    def rows_of_batch(self, rows: int) -> int:
        """How many rows a step sees at most."""
        return self.batch_size or min(max(_SMALL_BATCH, rows // _BATCHES), _LARGE_BATCH)

    def batches(self, rows: int) -> int:
        """How many steps an epoch has."""
        return -(-rows // self.rows_of_batch(rows))

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
        self.optimizer: Optimizer | None = None
        self.epochs, self.rows_seen = 0, 0.0
        self.losses: list[float] = []
        self.validation_scores: list[float] = []

    @property
    def model(self) -> nn.Module:
        """The networks as one model; several are members, each of which sees every row."""
        return self.networks[0] if len(self.networks) == 1 else DeepEnsemble([*self.networks])

    def fit(self, rows: WeightedRows, settings: FitSettings) -> None:
        """All epochs, with a new optimizer; the learning rate falls to zero."""
        self.optimizer, self.rows_seen = None, rows.total
        self.epochs, self.losses = 0, []
        options: dict[str, Any] = {"kl_warmup": settings.kl_warmup}
        if settings.early_stopping:
            rows, held_out = rows.split(settings.validation_fraction, self.seed)
            options |= {"validation": _arrays(held_out), "patience": settings.n_iter_no_change}
        epochs = settings.planned_epochs(len(rows))
        history = self._run(rows, settings, rows.total, epochs=epochs, **options)
        seen = [row["validation_nll"] for row in history if "validation_nll" in row]
        self.validation_scores = [-nll for nll in seen]

    def update(self, rows: WeightedRows, settings: FitSettings, data_size: float | None) -> None:
        """One epoch over rows that are more of the data."""
        self.rows_seen += rows.total
        size = data_size or self.rows_seen
        self._run(rows, settings, size, epochs=1, cosine=False, kl_warmup=0.0)

    def _run(
        self, rows: WeightedRows, settings: FitSettings, data_size: float, **options: Any
    ) -> History:
        try:
            history = fit(
                self.model,
                _arrays(rows),
                likelihood=self.likelihood,
                lr=settings.learning_rate,
                batch_size=settings.rows_of_batch(len(rows)),
                optimizer=partial(self._optimizer_of, settings.learning_rate),
                kl_weight=settings.kl_weight,
                clip=self.largest_gradient,
                data_size=data_size,
                seed=self.seed + self.epochs,
                progress=settings.verbose,
                **options,
            )
        except NonFiniteLossError as error:
            remedy = "Lower learning_rate, or look for extreme values in the table"
            raise NonFiniteLossError(error.reason, remedy) from None
        if history.interrupted:
            warnings.warn("fitting was interrupted; the weights are those so far", stacklevel=4)
        self.epochs += len(history)
        self.losses += [_loss_of_one(row, len(self.networks)) for row in history]
        return history

    def _optimizer_of(self, lr: float, groups: list[dict[str, Any]]) -> Optimizer:
        """The optimizer of the fit so far, or a new one."""
        if self.optimizer is None:
            parameters = [each for group in groups for each in group["params"]]
            self.optimizer = torch.optim.Adam(parameters, fused=True)
        for group in self.optimizer.param_groups:
            group["initial_lr"] = lr
        return self.optimizer


def _arrays(rows: WeightedRows) -> tuple[Tensor, Tensor, Tensor]:
    return rows.x, rows.y, rows.weight


def _loss_of_one(row: dict[str, float], networks: int) -> float:
    """The loss of a network on average; the KL of an epoch is that of all networks."""
    return row["nll"] + (row["loss"] - row["nll"]) / networks
