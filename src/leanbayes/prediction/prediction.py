"""Predictive samples and their summaries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from leanbayes import metrics
from leanbayes.errors import require
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.likelihoods.base import CLOSED, FromMoments
from leanbayes.likelihoods.mixtures import aligned, entropy, log_mean
from leanbayes.metrics import Bins, Coverage, Rejection, Score
from leanbayes.metrics.scores import as_tensor
from leanbayes.prediction.one_pass.gaussian import Uncertain

R = TypeVar("R")


def _takes_targets(method: Callable[[Any, Tensor], R]) -> Callable[[Any, Any], R]:
    """Let a method take what :meth:`Prediction.targets` takes."""
    return wraps(method)(lambda self, y: method(self, self.targets(y)))


class Interval(NamedTuple):
    """The ends of intervals, ``[batch, …]`` each."""

    low: Tensor
    high: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Samples of a model's outputs, with probabilities, intervals and metrics.

    ``len(p)`` is the number of examples, and ``p[:10]`` a prediction of some of them. Results carry
    a gradient only if the samples do.

    Attributes:
        samples: outputs ``[samples · members, batch, …]``.
        likelihood: likelihood of the outputs.
        method: sampling method: ``"vectorized"`` in one pass, ``"looped"``, ``"linearized"``, or by
            ``"moments"`` of every output; ``None`` if that is not known.
        reason: reason for not vectorizing them; ``None`` if they were.
        moments: mean and variance of every output, ``[members, batch, …]``, of one pass.
        fallback: reason for drawing samples although ``method="moments"`` was asked for.

    Example:
        >>> print(Prediction(torch.zeros(20, 5, 10)))
        Prediction of 5 examples in 10 classes from 20 samples: the most probable class has 10.0%
        on average; entropy 2.3 of at most 2.3 nats, 0 of it because samples disagree.
    """

    samples: Tensor
    likelihood: Likelihood = field(default_factory=Categorical)
    method: Literal["vectorized", "looped", "linearized", "moments"] | None = None
    reason: str | None = None
    moments: Uncertain | None = None
    fallback: str | None = None

    def _ask(self, question: str, *args: Any) -> Any:
        """Call a method of the likelihood, without a gradient of the learned noise."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.samples.requires_grad):
            if question in CLOSED and self._is_closed:
                assert self.moments is not None
                outputs = FromMoments.outputs(self.moments.loc, self.moments.variance)
                return getattr(FromMoments(self.likelihood), question)(outputs, *args)
            return getattr(self.likelihood, question)(self.samples, *args)

    @property
    def _is_closed(self) -> bool:
        """Whether the likelihood turns moments into a distribution of the targets."""
        if self.moments is None:
            return False
        one = self.moments.loc.new_ones(1, 1, *self.moments.shape[2:])
        return self.likelihood.from_moments(one, one) is not None

    @property
    def law(self) -> Distribution:
        """The distributions that targets are a mixture of: one per sample, or per member.

        Moments in closed form need no samples.
        """
        law: Distribution = self._ask("distribution")
        return law

    def __len__(self) -> int:
        return self.samples.shape[1]

    def __getitem__(self, index: int | slice | Tensor | Sequence[int]) -> Prediction:
        """Return the prediction of some examples; a single one stays a batch of one.

        Example:
            >>> p = Prediction(torch.zeros(20, 5, 10))
            >>> len(p[:3]), len(p[-1]), len(p[torch.arange(5) > 2])
            (3, 1, 2)
        """
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"index must be below the {len(self)} examples, got {index}")
            index = [index]
        place, moments = (slice(None), index), self.moments
        if moments is not None:
            moments = moments.each(Tensor.__getitem__, place)
        return replace(self, samples=self.samples[place], moments=moments)

    @property
    def sample_log_probs(self) -> Tensor:
        """Log probabilities of every sample, ``[samples, batch, …, classes]``.

        A Bernoulli output counts as the two classes off and on.
        """
        return self._ask("class_log_probs")

    @property
    def log_probs(self) -> Tensor:
        """Log of the probabilities averaged over samples."""
        return log_mean(self.sample_log_probs)

    @property
    def probs(self) -> Tensor:
        """Class probabilities averaged over samples (of being on, for a Bernoulli output)."""
        return self._ask("probs")

    @property
    def labels(self) -> Tensor:
        """The most probable class."""
        return self._ask("labels")

    @property
    def confidence(self) -> Tensor:
        """Probability of the most probable class."""
        return self.log_probs.exp().amax(-1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the averaged probabilities: all uncertainty, in nats."""
        return entropy(self.log_probs)

    @property
    def expected_entropy(self) -> Tensor:
        """Average entropy of the samples: uncertainty that more data would not remove."""
        return entropy(self.sample_log_probs).mean(0)

    @property
    def mutual_information(self) -> Tensor:
        """Entropy minus expected entropy: how much the samples disagree."""
        return (self.entropy - self.expected_entropy).clamp_min(0.0)

    @property
    def mean(self) -> Tensor:
        """The predictive mean."""
        return self._ask("mean")

    @property
    def aleatoric(self) -> Tensor:
        """Variance of the noise, averaged over samples."""
        return self._ask("aleatoric")

    @property
    def epistemic(self) -> Tensor:
        """Variance of the means over samples."""
        if self._is_closed:
            return (self.variance - self.aleatoric).clamp_min(0.0)
        return self._ask("epistemic")

    @property
    def variance(self) -> Tensor:
        """The predictive variance: aleatoric plus epistemic."""
        return self._ask("variance")

    @property
    def std(self) -> Tensor:
        """The predictive standard deviation."""
        return self.variance.sqrt()

    @property
    def has_classes(self) -> bool:
        """Whether targets are one of several names, on or off included, and not numbers."""
        return self._ask("has_classes")

    @property
    def answers(self) -> tuple[str, ...]:
        """What this prediction can be asked for: names of its properties and methods."""
        return self._ask("answers")

    def targets(self, y: Any) -> Tensor:
        """Return targets as a tensor in the shape of the predictions.

        Arrays, Series and lists become tensors, and classes whole numbers. One number per example
        may be flat or a column.

        Example:
            >>> Prediction(torch.zeros(20, 2, 10)).targets([[3.0], [1.0]])
            tensor([3, 1])
        """
        y = as_tensor(y)
        whole = y.dtype in (torch.bool, torch.uint8) or (
            isinstance(self.likelihood, Categorical) and bool((y == y.round()).all())
        )
        law = self.likelihood.distribution(self.samples[:1])
        return aligned(law, y.long() if whole else y)

    @_takes_targets
    def cdf(self, y: Tensor) -> Tensor:
        """Return the predictive probability of a target of at most ``y``, elementwise."""
        return self._ask("cdf", y)

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Return quantiles of the predictive mixture, ``[levels, batch, …]``, by bisection."""
        return self._ask("quantiles", levels)

    def interval(self, coverage: float = 0.9) -> Interval:
        """Return central credible intervals, as ``low, high``, ``[batch, …]`` each.

        Of numbers they hold a new target with this probability. A class has no interval; those of
        its probability, ``[batch, …, classes]``, hold this share of the samples: they are wide
        where samples disagree.

        Args:
            coverage: the probability, between 0 and 1.

        Example:
            >>> import leanbayes as lb
            >>> p = Prediction(torch.zeros(1, 1), lb.likelihoods.Gaussian(1.0))
            >>> low, high = p.interval(0.95)
            >>> low, high
            (tensor([-1.9600]), tensor([1.9600]))
        """
        return Interval(*self._ask("interval", coverage))

    def draw(self) -> Tensor:
        """Return one random target for every sample, ``[samples, batch, …]``."""
        return self._ask("sample")

    @_takes_targets
    def log_likelihood(self, y: Tensor) -> Tensor:
        """Return the log predictive density of every example: the log of the mean over samples."""
        return log_mean(self._ask("log_prob", y))

    def to(self, *args: Any, **kwargs: Any) -> Prediction:
        """Move the samples to another device or dtype, as :meth:`torch.Tensor.to` does.

        Example:
            >>> Prediction(torch.zeros(2, 3, 4)).to(torch.float64).samples.dtype
            torch.float64
        """
        moments = None if self.moments is None else self.moments.to(*args, **kwargs)
        return replace(self, samples=self.samples.to(*args, **kwargs), moments=moments)

    def to_pandas(self) -> Any:
        """Return a table with one row per example.

        Its columns are label, confidence, entropy, mutual information and class probabilities, or
        mean, standard deviation, both parts of the variance and the central 90% interval.

        Example:
            >>> Prediction(torch.zeros(20, 5, 2)).to_pandas().columns.tolist()
            ['labels', 'confidence', 'entropy', 'mutual_information', 'probs_0', 'probs_1']
        """
        try:
            import pandas as pd  # type: ignore[import-untyped]
        except ImportError:
            raise ImportError("to_pandas needs pandas; install it: pip install pandas") from None
        names = ["mean", "std", "aleatoric", "epistemic"]
        if self.has_classes:
            names = ["labels", "confidence", "entropy", "mutual_information", "probs"]
        values = {name: getattr(self, name) for name in names}
        if not self.has_classes:
            values |= self.interval()._asdict()
        columns: dict[str, Any] = {}
        for name, value in values.items():
            flat = value.detach().reshape(len(self), -1).double().cpu()
            whole = flat.long() if name == "labels" else flat
            several = flat.shape[1] > 1
            for place, column in enumerate(whole.unbind(1)):
                columns[f"{name}_{place}" if several else name] = column.numpy()
        return pd.DataFrame(columns)

    @_takes_targets
    def metrics(self, y: Tensor) -> dict[str, Score]:
        """Return how good the samples are: what the likelihood measures, with standard errors.

        Example:
            >>> prediction = Prediction(torch.zeros(2, 3, 4))
            >>> prediction.metrics(torch.tensor([0, 1, 2]))["brier"]
            0.75 ± 0
        """
        return self._ask("metrics", y)

    @_takes_targets
    def calibration(self, y: Tensor) -> Bins | Coverage:
        """Return whether probabilities are right: for ``plots.reliability`` or ``plots.coverage``.

        Of classes it is the accuracy in 15 bins of confidence; of numbers the share of targets
        that central intervals of 5%, 10%, …, 95% hold.

        Args:
            y: the truth.

        Example:
            >>> Prediction(torch.zeros(2, 3, 4)).calibration(torch.tensor([0, 1, 2])).examples.sum()
            tensor(3., dtype=torch.float64)
        """
        if self.has_classes:
            right = self.log_probs.argmax(-1) == self._classes(y)
            return metrics.calibration_bins(self.confidence.flatten(), right.flatten())
        return metrics.coverage_curve(self.to(torch.float64).cdf(y))

    @_takes_targets
    def rejection(self, y: Tensor) -> Rejection:
        """Return what is left when the most uncertain predictions are rejected.

        Of classes it is the accuracy, and entropy says what is uncertain; of numbers it is the root
        mean square error, and the predictive variance does.

        Args:
            y: the truth.

        Example:
            >>> samples = torch.tensor([[[9.0, 0.0], [0.1, 0.0]]])
            >>> Prediction(samples).rejection(torch.tensor([0, 1])).kept
            tensor([0.5000, 1.0000], dtype=torch.float64)
        """
        if self.has_classes:
            right = self.labels == self._classes(y)
            return metrics.rejection_curve(self.entropy.flatten(), right.flatten())
        off = (self.mean - y).square()
        rejected, kept = metrics.rejection_curve(self.variance.flatten(), off.flatten())
        return Rejection(rejected, kept.sqrt())

    def _classes(self, y: Tensor) -> Tensor:
        require(
            not y.is_floating_point() or bool((y == y.round()).all()),
            "targets are shares, and calibration needs classes; give whole numbers",
        )
        return y

    def __repr__(self) -> str:
        count, examples = (*self.samples.shape, 1)[:2]
        why = self.fallback if self.fallback is not None else self.reason
        how = self.method if why is None else f"{self.method}: {why}"
        origin = f"from {_counted(count, 'sample')}{f' ({how})' if how else ''}"
        if not self.samples.numel():
            return f"Prediction of {_counted(examples, 'example')} {origin}."
        if self.has_classes:
            return f"Prediction of {self._about_classes(examples, origin)}."
        if "mean" in self.answers:
            return f"Prediction of {self._about_numbers(examples, origin)}."
        shape = tuple(self.samples.shape[1:])
        kind = type(self.likelihood).__name__
        return f"Prediction of outputs {shape} {origin}, which a {kind} explains."

    def _about_classes(self, examples: int, origin: str) -> str:
        log_probs = self.log_probs
        classes, sure = log_probs.shape[-1], float(self.confidence.mean())
        total, apart = float(self.entropy.mean()), float(self.mutual_information.mean())
        where = _each(examples, self.labels)
        return (
            f"{where} in {classes} classes {origin}: the most probable class has "
            f"{100 * sure:.1f}% on average; entropy {total:.2g} of at most "
            f"{math.log(classes):.2g} nats, {_small(apart)} of it because samples disagree"
        )

    def _about_numbers(self, examples: int, origin: str) -> str:
        mean, variance = self.mean, self.variance
        low, high = (float(end) for end in mean.aminmax())
        share = float(self.epistemic.sum() / variance.sum())
        known = f"{100 * share:.0f}%" if math.isfinite(share) else "an unknown share"
        return (
            f"{_each(examples, mean)} {origin}: means from {low:.4g} to {high:.4g}; standard "
            f"deviation {float(variance.mean().sqrt()):.3g}, {known} of the variance because "
            "samples disagree"
        )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _each(examples: int, values: Tensor) -> str:
    """Return how many examples, and how many predictions each has."""
    several = values.numel() // max(examples, 1)
    each = f", {several} predictions each," if several > 1 else ""
    return f"{_counted(examples, 'example')}{each}"


def _small(value: float) -> str:
    """Return two digits that matter; rounding is nothing."""
    return f"{value:.2g}" if value > 1e-4 else "0"
