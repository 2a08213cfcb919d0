"""Fitting: the rows of a table as training sees them, and how estimators call the training loop."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.optim import Optimizer

from leanbayes.errors import NonFiniteLossError, require, require_count, require_positive
from leanbayes.likelihoods import Likelihood
from leanbayes.models.baselines import DeepEnsemble
from leanbayes.models.random_maps import members
from leanbayes.training.fit import fit
from leanbayes.training.history import History

Floats = NDArray[np.float64]


class DistinctRows(NamedTuple):
    """Inputs ``[rows, features]``, targets and weights ``[rows]``, as numpy has them."""

    x: Floats
    y: Floats
    weight: Floats


def distinct_rows(x: Floats, y: Floats, weight: Floats) -> DistinctRows:
    """Merge equal rows, add their weights, leave out those of no weight, and sort the rest.

    A row of weight 3 is then the same as three rows, and the order of a table does not matter.
    """
    kept = weight > 0
    require(bool(kept.any()), "all sample weights are zero; give at least one row some weight")
    table = np.ascontiguousarray(np.column_stack([x, y])[kept] + 0.0)  # -0.0 becomes 0.0
    keys = table.view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).ravel()
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    rows = table[first]
    weights = np.bincount(place.ravel(), weights=weight[kept]).astype(np.float64)
    return DistinctRows(rows[:, :-1], rows[:, -1], weights)


def fitted_scaler(columns: Floats, weight: Floats) -> StandardScaler:
    """Return scikit-learn's scaler; columns that vary by rounding only stay small."""
    scaler = StandardScaler().fit(columns, sample_weight=weight)
    scaler.scale_ = np.maximum(scaler.scale_, 1e-12 * np.abs(scaler.mean_))
    return scaler


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """What a network is trained on.

    Attributes:
        x: scaled inputs ``[rows, features]``.
        y: targets, as the likelihood takes them.
        weight: weight of each row, 1 on average.
        total: number of rows that these stand for: the sum of the weights as given.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    total: float

    @staticmethod
    def of(x: Any, y: Any, weight: Floats, dtype: torch.dtype) -> WeightedRows:
        """Make rows from numpy arrays; ``dtype`` is that of the targets."""
        total = float(weight.sum())
        relative = torch.as_tensor(weight * (len(weight) / total), dtype=torch.float32)
        inputs = torch.as_tensor(np.asarray(x), dtype=torch.float32)
        return WeightedRows(inputs, torch.as_tensor(np.asarray(y), dtype=dtype), relative, total)

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> WeightedRows:
        """Return some of the rows, as a separate table."""
        weight = self.weight[index]
        share = float(weight.sum() / self.weight.sum())
        return WeightedRows(
            self.x[index], self.y[index], weight / weight.mean(), self.total * share
        )

    def split(self, fraction: float, seed: int) -> tuple[WeightedRows, WeightedRows]:
        """Return rows to train on and rows to validate with; the same share of every class."""
        require(0 < fraction < 1, f"validation_fraction is {fraction}; it lies between 0 and 1")
        rng = np.random.RandomState(seed % 2**32)
        codes = self.y.numpy()
        whole = not self.y.is_floating_point()
        groups = [np.flatnonzero(codes == c) for c in np.unique(codes)] if whole else None
        chosen = [
            rng.permutation(group)[: round(fraction * len(group))]
            for group in groups or [np.arange(len(self))]
        ]
        held_out = np.zeros(len(self), dtype=bool)
        held_out[np.concatenate(chosen)] = True
        require(
            bool(held_out.any()) and not bool(held_out.all()),
            f"{len(self)} distinct rows cannot be split for validation; give more rows, another "
            "validation_fraction, or early_stopping=False",
        )
        return tuple(  # type: ignore[return-value]
            self.take(torch.as_tensor(np.flatnonzero(part))) for part in (~held_out, held_out)
        )


def round_off(values: Tensor) -> Floats:
    """Return numbers in double precision, rounded to the 24 bits of single precision.

    What is left of the order in which a processor adds numbers up is far below that.
    """
    mantissa, exponent = np.frexp(values.detach().double().numpy())
    rounded: Floats = np.ldexp(np.round(mantissa * 2.0**24), exponent - 24)
    return rounded


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
        """Return how many rows a step sees at most."""
        return self.batch_size or min(max(_SMALL_BATCH, rows // _BATCHES), _LARGE_BATCH)

    def batches(self, rows: int) -> int:
        """Return how many steps an epoch has."""
        return -(-rows // self.rows_of_batch(rows))

    def planned_epochs(self, rows: int) -> int:
        """Return how many epochs a fit has, for so many distinct rows."""
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
        """Train all epochs with a new optimizer; the learning rate falls to zero."""
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
        """Train one epoch over more rows."""
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
        """Return the optimizer of the fit so far, or a new one."""
        if self.optimizer is None:
            parameters = [each for group in groups for each in group["params"]]
            self.optimizer = torch.optim.Adam(parameters, fused=True)
        for group in self.optimizer.param_groups:
            group["initial_lr"] = lr
        return self.optimizer


def _arrays(rows: WeightedRows) -> tuple[Tensor, Tensor, Tensor]:
    return rows.x, rows.y, rows.weight


def _loss_of_one(row: dict[str, float], networks: int) -> float:
    """Return the loss of a network on average; the KL of an epoch is that of all networks."""
    return row["nll"] + (row["loss"] - row["nll"]) / networks
