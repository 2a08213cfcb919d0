"""Regression with scikit-learn's interface."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from torch import Tensor, distributions
from torch.distributions import Distribution

from leanbayes.errors import require_choice
from leanbayes.likelihoods import Gaussian, Likelihood
from leanbayes.prediction.predict import Prediction
from leanbayes.sklearn.base import BayesEstimator, Uncertainty
from leanbayes.sklearn.fitting import Floats, fitted_scaler

_FIRST_NOISE = 0.5
_LARGEST_GRADIENT = 1.0


class _MeansAndScales(Likelihood):
    """Normal targets; outputs are means and standard deviations, in the last dimension."""

    def distribution(self, outputs: Tensor) -> Distribution:
        return distributions.Normal(outputs[..., 0], outputs[..., 1], validate_args=False)


@dataclass(eq=False, repr=False)
class BayesRegressor(RegressorMixin, BayesEstimator):
    """A Bayesian neural network for regression, as a scikit-learn estimator.

    Targets are scaled internally; predictions have their units. A row of weight 3 is the same as
    three rows. The order of rows does not matter, in fitting or prediction.

    Intervals and quantiles are *credible, not conformal*: they are only as good as the model and
    its posterior. For a guarantee of coverage wrap the estimator with MAPIE.

    Args:
        posterior: ``"mean-field"``, ``"k-tied"``, ``"matrix-normal"``, ``"rank-1"``,
            ``"low-rank"``, ``"variance"``, ``"ensemble"`` (plain networks), or a spec such as
            ``lb.KTied(3)``.
        rank: rank of k-tied standard deviations, or of low-rank matrices.
        hidden: units of every hidden layer.
        members: number of members of rank-1 (4) or networks (5 in an ensemble, 1 otherwise).
        activation: ``"relu"``, ``"tanh"``, ``"elu"``, ``"gelu"`` or ``"silu"``.
        prior: spec of the weights' prior; by default normal with a learned scale for every layer,
            ``N(1, 0.1²)`` for the factors of rank-1 and He's for ensembles.
        scale: first standard deviation of mean field, k-tied and matrix normal.
        noise: ``"learned"``, one level for all rows; or ``"predicted"``, one for each.
        samples: number of functions that a prediction averages over, of all members together.
        method: ``"samples"``, or ``"moments"`` for one pass, as in :func:`leanbayes.predict`.
        kl_weight: factor of the KL; 1 is the ELBO, less is a cold posterior.
        kl_warmup: the share of steps in which that weight rises from zero; ``partial_fit``, which
            knows no end, always has the whole weight.
        epochs: number of passes over all rows; ``None`` gives six steps a row, at least 150 and at
            most 10,000, and at least 20 epochs.
        batch_size: rows in a step; ``None`` for a fortieth of all, at least 200 and at most
            1000, or all if there are fewer.
        learning_rate: the first one of Adam; it falls along a cosine to zero.
        early_stopping: keep the weights that predict held-out rows best.
        validation_fraction: the share of rows held out for that.
        n_iter_no_change: stop after so many validations (at most 100 a fit) without a better one.
        scale_inputs: let inputs have mean 0 and standard deviation 1 inside.
        data_size: number of all rows, for ``partial_fit``; by default those seen.
        warm_start: let ``fit`` go on from where it was.
        verbose: show a line of progress.
        random_state: seed of first weights, batches and noise; an integer makes fits repeatable.

    Example:
        >>> X = np.linspace(-1, 1, 30)[:, None]
        >>> reg = BayesRegressor(random_state=0).fit(X, 3 * X[:, 0])
        >>> mean, std = reg.predict(X, return_std=True)
        >>> reg.predict_interval(X, coverage=0.9).shape
        (30, 2)
    """

    _y_is_numeric = True

    noise: Literal["learned", "predicted"] = field(default="learned", kw_only=True)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Return one epoch over more rows; the first ones say how inputs and targets are scaled.

        Rows that are given twice count twice, unless ``data_size`` says how many there are.
        """
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the predictive mean ``[rows]`` and, with ``return_std``, the deviation."""
        if not return_std:
            return self._to_units(self._asked(X, lambda p: p.mean))
        both = self._asked(X, lambda p: torch.stack([p.mean, p.variance.sqrt()], -1))
        return self._to_units(both[:, 0]), both[:, 1] * self._unit

    def predict_interval(self, X: Any, coverage: float | Sequence[float] = 0.9) -> Floats:
        """Return central credible intervals, not conformal ones: ``[rows, 2]``.

        Args:
            X: inputs.
            coverage: the probability that they hold; several give ``[rows, 2, coverages]``.
        """
        several = [float(each) for each in np.atleast_1d(np.asarray(coverage, dtype=float))]
        ends = self._asked(
            X,
            lambda p: torch.stack([torch.stack(p.interval(each), -1) for each in several], -1),
        )
        intervals = self._to_units(ends)
        return intervals[..., 0] if np.ndim(coverage) == 0 else intervals

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Floats:
        """Return quantiles of the predictive distribution, ``[rows, quantiles]``."""
        levels = [float(level) for level in quantiles]
        return self._to_units(self._asked(X, lambda p: p.quantiles(levels).movedim(0, -1)))

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Return predictive variances: of all, of the noise, and between the drawn functions."""
        parts = self._asked(X, lambda p: torch.stack([p.aleatoric, p.epistemic], -1))
        aleatoric, epistemic = (self._unit**2 * parts).T
        return Uncertainty(aleatoric + epistemic, aleatoric, epistemic)

    def predict_dist(self, X: Any) -> Prediction:
        """Return the library's prediction of every row, in the units of the targets."""
        parts = list(self._predictions(X))
        samples = torch.cat([part.samples for part in parts], 1)
        unit, law = self._unit, parts[0].likelihood
        if isinstance(law, Gaussian):
            return Prediction(self._shift + unit * samples, Gaussian(unit * law.scale))
        means, scales = samples.unbind(-1)
        both = torch.stack([self._shift + unit * means, unit * scales], -1)
        return Prediction(both, law)

    def _codes(self, y: NDArray[Any]) -> Floats:
        return np.asarray(y, dtype=np.float64)

    def _new_likelihood(self) -> tuple[Likelihood, int]:
        require_choice("noise", self.noise, ("learned", "predicted"))
        return Gaussian(_FIRST_NOISE, self.noise), 2 if self.noise == "predicted" else 1

    @property
    def _largest_gradient(self) -> float | None:
        """Of predicted noise: a row that is believed to have none would pull without bound."""
        return _LARGEST_GRADIENT if self.noise == "predicted" else None

    def _targets(self, y: Floats, weight: Floats, *, first: bool) -> tuple[Floats, torch.dtype]:
        column = y[:, None]
        if first:
            self.target_scaler_ = fitted_scaler(column, weight)
        return self.target_scaler_.transform(column), torch.float32

    def _prediction(self, outputs: Tensor) -> Prediction:
        law = self.likelihood_
        assert isinstance(law, Gaussian)
        if law.log_scale is not None:
            return Prediction(outputs.squeeze(-1), Gaussian(float(law.log_scale.exp())))
        normal = law.distribution(outputs)
        return Prediction(torch.cat([normal.mean, normal.stddev], -1), _MeansAndScales())

    @property
    def _shift(self) -> float:
        return float(self.target_scaler_.mean_[0])

    @property
    def _unit(self) -> float:
        return float(self.target_scaler_.scale_[0])

    def _to_units(self, scaled: Floats) -> Floats:
        return self._shift + self._unit * scaled
