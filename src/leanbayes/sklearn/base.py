"""Base of both estimators: parameters, fitting, and draws of the fitted functions."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from leanbayes.errors import require_choice, require_count
from leanbayes.likelihoods import Likelihood
from leanbayes.models.random_maps import random_maps
from leanbayes.posteriors import Point, Posterior
from leanbayes.prediction.predict import Method, Prediction, predict_batches
from leanbayes.priors import Prior
from leanbayes.sklearn.fitting import (
    FitSettings,
    Fitted,
    Floats,
    WeightedRows,
    distinct_rows,
    fitted_scaler,
    round_off,
)
from leanbayes.sklearn.posterior_names import Shape, build_networks, find_family

_BLOCK = 2**18
"""How many numbers of output are drawn at once: samples times rows."""


class Uncertainty(NamedTuple):
    """What a prediction does not know, ``[rows]`` each; the last two add up to the first.

    Attributes:
        total: all of it.
        aleatoric: noise, which more data would not remove.
        epistemic: disagreement of the drawn functions, which more data would reduce.
    """

    total: Floats
    aleatoric: Floats
    epistemic: Floats


@dataclass(eq=False, repr=False)
class BayesEstimator(BaseEstimator, ABC):
    """A Bayesian perceptron behind scikit-learn's interface.

    Attributes:
        networks_: the fitted networks, one unless the family is an ensemble.
        likelihood_: likelihood of the outputs, in scaled units.
        input_scaler_: scaling of the inputs; ``None`` without scaling.
        n_iter_: number of epochs that were run.
        loss_curve_: the mean loss of every epoch.
        validation_scores_: mean log predictive densities of held-out rows, if stopping early.
        n_features_in_: number of inputs.
        feature_names_in_: their names, if they have some.
    """

    posterior: str | Posterior = "k-tied"
    _: KW_ONLY
    rank: int = 2
    hidden: int | Sequence[int] = (50,)
    members: int | None = None
    activation: str = "relu"
    prior: Prior | None = None
    scale: float = 0.05
    samples: int = 100
    method: Method = "samples"
    kl_weight: float = 1.0
    kl_warmup: float = 0.8
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float = 0.02
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    scale_inputs: bool = True
    data_size: int | None = None
    warm_start: bool = False
    verbose: bool = False
    random_state: Any = None

    def _remember(self, y: NDArray[Any]) -> None:
        """Keep what targets say about all there will ever be."""

    @abstractmethod
    def _codes(self, y: NDArray[Any]) -> Floats:
        """Targets as numbers, before they are scaled; raise if they are none of those expected."""

    def _row_weights(self, y: NDArray[Any], weight: Floats) -> Floats:
        """Return the weights of rows, given what was asked for each."""
        return weight

    @abstractmethod
    def _new_likelihood(self) -> tuple[Likelihood, int]:
        """Return what outputs mean, and how many there are."""

    @abstractmethod
    def _targets(self, y: Floats, weight: Floats, *, first: bool) -> tuple[Floats, torch.dtype]:
        """Return numbers as the likelihood takes them; at the first call choose their scale."""

    @abstractmethod
    def _prediction(self, outputs: Tensor) -> Prediction:
        """Return what outputs ``[samples, rows, outputs]`` say, in scaled units."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to rows ``X`` and targets ``y``.

        Args:
            X: inputs ``[rows, features]``: an array, or a table of pandas or polars.
            y: targets ``[rows]``.
            sample_weight: number of rows that each row stands for; 1 if not given.
        """
        settings = self._settings()
        warm = self.warm_start and hasattr(self, "networks_")
        X, y = self._validated(X, y, first=not warm)
        if not warm:
            self._remember(y)
        rows = self._prepared(X, y, sample_weight, first=not warm)
        self._fitted.fit(rows, settings)
        return self._finish()

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        settings, first = self._settings(), not hasattr(self, "networks_")
        X, y = self._validated(X, y, first=first)
        rows = self._prepared(X, y, sample_weight, first=first)
        self._fitted.update(rows, settings, self.data_size)
        return self._finish()

    _y_is_numeric = False

    def _validated(self, X: Any, y: Any, *, first: bool) -> tuple[Floats, NDArray[Any]]:
        numeric = self._y_is_numeric
        return validate_data(self, X, y, dtype=np.float64, reset=first, y_numeric=numeric)

    @property
    def _largest_gradient(self) -> float | None:
        """What longer gradients are shortened to; ``None`` where none grows out of bounds."""
        return None

    def _prepared(
        self, X: Floats, y: NDArray[Any], sample_weight: Any, *, first: bool
    ) -> WeightedRows:
        """Return distinct rows, scaled; the first ones say how, and make the networks."""
        codes = self._codes(y)
        given = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        rows = distinct_rows(X, codes, self._row_weights(y, given))
        if first:
            self.input_scaler_ = None
            if self.scale_inputs:
                self.input_scaler_ = fitted_scaler(rows.x, rows.weight)
        targets, dtype = self._targets(rows.y, rows.weight, first=first)
        prepared = WeightedRows.of(self._scaled(rows.x), targets, rows.weight, dtype)
        if first:
            self._begin(prepared)
        return prepared

    def _scaled(self, x: Floats) -> Floats:
        return x if self.input_scaler_ is None else self.input_scaler_.transform(x)

    def _begin(self, rows: WeightedRows) -> None:
        """Networks with their first weights."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        likelihood, outputs = self._new_likelihood()
        family = find_family(self.posterior)
        members = family.members if self.members is None else self.members
        hidden = [self.hidden] if isinstance(self.hidden, int) else list(self.hidden)
        for width in hidden:
            require_count("hidden", width, 1)
        networks = build_networks(
            family,
            Shape(self.rank, members, self.scale),
            [rows.x.shape[1], *hidden, outputs],
            activation=self.activation,
            prior=self.prior,
            seed=seed,
        )
        self._fitted = Fitted(networks, likelihood.float(), seed, self._largest_gradient)

    def _finish(self) -> Self:
        fitted = self._fitted
        self.networks_, self.likelihood_ = fitted.networks, fitted.likelihood
        self.n_iter_, self.loss_curve_ = fitted.epochs, list(fitted.losses)
        self.validation_scores_ = list(fitted.validation_scores)
        return self

    def _settings(self) -> FitSettings:
        require_count("samples", self.samples, 1)
        require_choice("method", self.method, get_args(Method))
        if self.data_size is not None:
            require_count("data_size", self.data_size, 1)
        names = FitSettings.__dataclass_fields__
        return FitSettings(**{name: getattr(self, name) for name in names})

    def _predictions(self, X: Any) -> Iterator[Prediction]:
        """Predictions of one block of rows after the other, in scaled units.

        Every draw is one function, the same for all rows, computed in double precision; moments
        draw outputs alone. What a row gets does not depend on the rows beside it.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        x = torch.as_tensor(np.ascontiguousarray(self._scaled(X)))
        networks = [copy.deepcopy(network).double() for network in self.networks_]
        samples = self._draws_of_each()
        parts = [
            predict_batches(
                network,
                x,
                method=self.method,
                samples=samples,
                batch_size=max(_BLOCK // self.samples, 1),
                coherent=self.method == "samples",
                seed=self._fitted.seed + number,
            )
            for number, network in enumerate(networks)
        ]
        for drawn in zip(*parts, strict=True):
            with torch.no_grad():
                yield self._prediction(torch.cat([part.samples for part in drawn]))

    def _draws_of_each(self) -> int:
        """Return how many draws every member gives: one if it has no noise."""
        if all(isinstance(m.posterior.spec, Point) for _, m in random_maps(self.networks_)):
            return 1
        return -(-self.samples // sum(self._fitted.members))

    def _asked(self, X: Any, question: Callable[[Prediction], Tensor]) -> Floats:
        """What a function of predictions gives, ``[rows, …]``, the same for a row anywhere."""
        return np.concatenate([round_off(question(part)) for part in self._predictions(X)])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "networks_")
