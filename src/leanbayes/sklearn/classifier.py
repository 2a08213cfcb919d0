"""Classification with scikit-learn's interface."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from torch import Tensor

from leanbayes.errors import require
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.prediction.predict import Prediction
from leanbayes.sklearn.base import BayesEstimator, Uncertainty
from leanbayes.sklearn.fitting import Floats


@dataclass(eq=False, repr=False)
class BayesClassifier(ClassifierMixin, BayesEstimator):
    """A Bayesian neural network for classification, as a scikit-learn estimator.

    A row of weight 3 is the same as three rows. The order of rows does not matter, in fitting or
    prediction.

    Probabilities are *credible, not conformal*: they are averages over the posterior, and only as
    good as the model. For a guarantee of coverage wrap the estimator with MAPIE.

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
        class_weight: number of rows that a row of each class stands for: a dictionary, or
            ``"balanced"`` to let all classes weigh the same.
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
        validation_fraction: the share of rows held out for that, of every class.
        n_iter_no_change: stop after so many validations (at most 100 a fit) without a better one.
        scale_inputs: let inputs have mean 0 and standard deviation 1 inside.
        data_size: number of all rows, for ``partial_fit``; by default those seen.
        warm_start: let ``fit`` go on from where it was.
        verbose: show a line of progress.
        random_state: seed of first weights, batches and noise; an integer makes fits repeatable.

    Example:
        >>> X = np.linspace(-1, 1, 30)[:, None]
        >>> clf = BayesClassifier(random_state=0).fit(X, np.where(X[:, 0] > 0, "up", "down"))
        >>> clf.predict([[-1.0], [1.0]])
        array(['down', 'up'], dtype='<U4')
        >>> clf.predict_uncertainty(X).epistemic.shape
        (30,)
    """

    class_weight: Mapping[Any, float] | str | None = field(default=None, kw_only=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Return one epoch over more rows; the first ones say how inputs are scaled.

        Rows that are given twice count twice, unless ``data_size`` says how many there are.

        Args:
            X: inputs.
            y: their classes.
            classes: all classes there will ever be; needed at the first call.
            sample_weight: number of rows that each row stands for.
        """
        require(
            self.class_weight != "balanced",
            "class_weight='balanced' needs all rows at once; compute weights for them and give a "
            "dictionary",
        )
        if not hasattr(self, "networks_"):
            require(
                classes is not None, "the first call of partial_fit needs classes=, all of them"
            )
            self.classes_: NDArray[Any] = unique_labels(classes)
        elif classes is not None:
            same = np.array_equal(self.classes_, unique_labels(classes))
            require(same, f"classes are {list(classes)}; the first call gave {list(self.classes_)}")
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of every row."""
        probs = self.predict_proba(X)
        return self.classes_[probs.argmax(1)]

    def predict_proba(self, X: Any) -> Floats:
        """Return probabilities ``[rows, classes]`` in the order of ``classes_``."""
        probs = self._asked(X, lambda p: p.probs)
        return probs / probs.sum(1, keepdims=True)

    def predict_log_proba(self, X: Any) -> Floats:
        """Return their logarithms, also of probabilities too small for a number."""
        return self._asked(X, lambda p: p.log_probs)

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Return total, aleatoric and epistemic entropies in nats.

        They are the entropy of the averaged probabilities, the average entropy of the samples, and
        their difference: the mutual information of class and function.
        """
        parts = self._asked(
            X, lambda p: torch.stack([p.expected_entropy, p.mutual_information], -1)
        )
        aleatoric, epistemic = parts.T
        return Uncertainty(aleatoric + epistemic, aleatoric, epistemic)

    def predict_dist(self, X: Any) -> Prediction:
        """Return the library's prediction of every row; classes are numbered as in ``classes_``."""
        parts = list(self._predictions(X))
        return Prediction(torch.cat([part.samples for part in parts], 1), parts[0].likelihood)

    def _remember(self, y: NDArray[Any]) -> None:
        check_classification_targets(y)
        self.classes_ = unique_labels(y)

    def _codes(self, y: NDArray[Any]) -> Floats:
        check_classification_targets(y)
        new = np.setdiff1d(y, self.classes_)
        require(
            not len(new),
            f"class {new[:1].tolist()} is new, and the network knows the classes "
            f"{self.classes_.tolist()}; name all of them at the first call, or fit again without "
            "warm_start",
        )
        return np.searchsorted(self.classes_, y).astype(np.float64)

    def _row_weights(self, y: NDArray[Any], weight: Floats) -> Floats:
        return weight * compute_sample_weight(self.class_weight, y)

    def _new_likelihood(self) -> tuple[Likelihood, int]:
        return Categorical(), len(self.classes_)

    def _targets(self, y: Floats, weight: Floats, *, first: bool) -> tuple[Floats, torch.dtype]:
        return y, torch.long

    def _prediction(self, outputs: Tensor) -> Prediction:
        return Prediction(outputs, Categorical())
