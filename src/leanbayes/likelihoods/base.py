"""The contract of a likelihood: one distribution, and everything that follows from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from leanbayes.errors import require
from leanbayes.likelihoods import mixtures
from leanbayes.metrics import Score, average, interval_coverage, interval_width
from leanbayes.registry import Registry, argument_names

_OF_CLASSES = ("probs", "log_probs", "labels", "entropy", "expected_entropy", "mutual_information")
_OF_MOMENTS = ("mean", "aleatoric", "epistemic", "variance")
_OF_CDF = ("cdf", "quantiles", "interval")


class Likelihood(nn.Module, ABC):
    """Distribution of the targets ``[batch, …]`` for given outputs ``[..., batch, …]``.

    One of your own defines :meth:`distribution`; all else follows from that, where torch's
    distribution has it, and says in one sentence where it has not. Means, variances, quantiles,
    probabilities and metrics are those of the mixture of outputs ``[samples, batch, …]``.
    """

    @abstractmethod
    def distribution(self, outputs: Tensor) -> Distribution:
        """Return the distribution of every target, given outputs."""

    def from_moments(self, loc: Tensor, variance: Tensor) -> Distribution | None:
        """Return the distribution of every target, given means and variances of normal outputs.

        ``None`` where there is no closed form: draws of the outputs are used then.
        """
        return None

    def check(self, outputs: Tensor, y: Tensor) -> None:
        """Raise an error if targets do not fit outputs of this shape.

        It looks at every target, so losses do not call it where a device would have to wait;
        training in the laboratory does once, before it begins.

        Args:
            outputs: ``[..., batch, …]``, of any of the examples.
            y: targets ``[examples, …]``, of all of them.
        """
        wrong = (~y.isfinite()).reshape(len(y), -1).any(1).nonzero().flatten().tolist()
        require(
            not wrong,
            f"targets of {len(wrong)} examples are not finite, the first at {wrong[:3]} (counted "
            "from 0); leave these examples out",
        )

    def targets(self, y: Tensor, outputs: Tensor) -> Tensor:
        """Return targets as the distribution takes them: in the precision of the outputs."""
        return y.to(outputs.dtype)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the log likelihood of every example, ``[..., batch]``."""
        return self._log_prob(self.distribution(outputs), outputs, y)

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the negative log likelihood, a mean over examples (and samples, if any)."""
        return -self.log_prob(outputs, y).mean()

    def sample(self, outputs: Tensor) -> Tensor:
        """Return one random target for every output."""
        return self.distribution(outputs).sample()

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the predictive mean."""
        return self._moment("mean", outputs).mean(0)

    def aleatoric(self, outputs: Tensor) -> Tensor:
        """Return the variance of the noise, averaged over samples."""
        return self._moment("variance", outputs).mean(0)

    def epistemic(self, outputs: Tensor) -> Tensor:
        """Return the variance of the means over samples."""
        return self._moment("mean", outputs).var(0, correction=0)

    def variance(self, outputs: Tensor) -> Tensor:
        """Return the predictive variance: aleatoric plus epistemic."""
        return self.aleatoric(outputs) + self.epistemic(outputs)

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the predictive probability of a target of at most ``y``, elementwise."""
        law = self.distribution(outputs)
        cdf = self._cdf(law, outputs)
        return cdf(mixtures.aligned(law, y).to(outputs.dtype).unsqueeze(0))[0]

    def quantiles(self, outputs: Tensor, levels: Sequence[float]) -> Tensor:
        """Return predictive quantiles ``[levels, batch, …]``: where the cdf reaches each level."""
        law = self.distribution(outputs)
        like = outputs.new_empty(law.batch_shape[1:])
        return mixtures.quantiles(self._cdf(law, outputs), levels, law, like)

    def interval(self, outputs: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
        """Return the ends of central intervals of numeric targets, or of class probabilities.

        Args:
            outputs: ``[samples, batch, …]``.
            coverage: the predictive probability of a number inside, or the share of samples whose
                probability of a class is.
        """
        require(0 < coverage < 1, f"coverage is {coverage}; it must lie between 0 and 1")
        levels = ((1 - coverage) / 2, (1 + coverage) / 2)
        if self.has_classes(outputs):
            probs = self.class_log_probs(outputs).exp()
            probs = probs[..., 1] if mixtures.is_binary(self._law(outputs)) else probs
            low, high = mixtures.sample_quantiles(probs, levels)
        else:
            low, high = self.quantiles(outputs, levels)
        return low, high

    def class_log_probs(self, outputs: Tensor) -> Tensor:
        """Return log probabilities of all classes, ``[samples, batch, …, classes]``."""
        law = self.distribution(outputs)
        if not mixtures.is_finite(law):
            raise self._cannot("class probabilities", outputs)
        return mixtures.value_log_probs(law)

    def probs(self, outputs: Tensor) -> Tensor:
        """Return class probabilities averaged over samples; of binary targets that of being on."""
        probs = mixtures.log_mean(self.class_log_probs(outputs)).exp()
        return probs[..., 1] if mixtures.is_binary(self._law(outputs)) else probs

    def labels(self, outputs: Tensor) -> Tensor:
        """Return the most probable class."""
        return mixtures.log_mean(self.class_log_probs(outputs)).argmax(-1)

    def has_classes(self, outputs: Tensor) -> bool:
        """Return whether targets are one of several names, on or off included, and not numbers."""
        law = self._law(outputs)
        return mixtures.is_binary(law) or (mixtures.is_finite(law) and not mixtures.has_mean(law))

    def answers(self, outputs: Tensor) -> tuple[str, ...]:
        """Return what a :class:`~leanbayes.Prediction` of such outputs can be asked for.

        Example:
            >>> from leanbayes.likelihoods import Categorical
            >>> Categorical().answers(torch.zeros(5, 2, 3))[:3]
            ('probs', 'log_probs', 'labels')
        """
        law = self._law(outputs)
        names = (
            *(_OF_CLASSES if mixtures.is_finite(law) else ()),
            *(_OF_MOMENTS if mixtures.has_mean(law) else ()),
            *(_OF_CDF if mixtures.cdf(law) else ()),
            *(("interval",) if self.has_classes(outputs) else ()),
            "log_likelihood",
        )
        return tuple(dict.fromkeys(names))

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, Score]:
        """Return how good predictive samples are, with standard errors over examples.

        All have ``nll``. Classes get ``accuracy``, ``brier``, calibration errors, ``aurc`` and
        uncertainties, and how diverse several samples are; on or off gets ``accuracy`` and, if
        single, ``ece``, ``auc_pr`` and ``auroc``; numbers get ``squared_error`` and ``rmse`` and,
        if single, ``crps`` and the coverage and width of 90% intervals.
        """
        values = {"nll": average(-mixtures.log_mean(self.log_prob(outputs, y)))}
        law = self._law(outputs)
        if mixtures.is_binary(law):
            return values | mixtures.scores_of_binary(self.probs(outputs), self.labels(outputs), y)
        if self.has_classes(outputs):
            return values | mixtures.scores_of_classes(self.class_log_probs(outputs), y)
        if mixtures.has_mean(law):
            values |= mixtures.scores_of_numbers(self.distribution(outputs), self.mean(outputs), y)
        if mixtures.cdf(law) and y.numel() == len(y):
            low, high = self.interval(outputs, 0.9)
            values["coverage_90"] = interval_coverage(low, high, y)
            values["width_90"] = interval_width(low, high)
        return values

    def to_dict(self) -> dict[str, Any]:
        """Return the registered kind and the arguments of ``__init__``, ready for JSON."""
        arguments = self._arguments()
        missing = [name for name in argument_names(type(self)) if name not in arguments]
        if missing:
            raise ValueError(
                f"{type(self).__name__} has no attribute {missing[0]!r}, and a file needs it; keep "
                "every argument of __init__ under its own name"
            )
        return {"kind": LIKELIHOODS.name_of(self), **arguments}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Likelihood:
        """Make a likelihood from what :meth:`to_dict` returned, with its initial parameters."""
        arguments = with_current_spelling(values)
        return LIKELIHOODS.make(arguments.pop("kind", ""), **arguments)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._arguments().items())

    def _arguments(self) -> dict[str, Any]:
        names = argument_names(type(self))
        return {name: vars(self)[name] for name in names if name in vars(self)}

    def _log_prob(self, law: Distribution, outputs: Tensor, y: Tensor) -> Tensor:
        targets = self.targets(y, outputs)
        if torch.compiler.is_compiling():
            return mixtures.example_log_prob(law, targets)
        try:
            return mixtures.example_log_prob(law, targets)
        except (RuntimeError, IndexError):
            self.check(outputs, y)
            raise

    def _law(self, outputs: Tensor) -> Distribution:
        """The distribution at one harmless output: what it can answer does not depend on data."""
        return self.distribution(outputs.new_ones(1, 1, *outputs.shape[2:]))

    def _moment(self, name: str, outputs: Tensor) -> Tensor:
        if not (torch.compiler.is_compiling() or mixtures.has_mean(self._law(outputs))):
            raise self._cannot(name, outputs)
        value: Tensor = getattr(self.distribution(outputs), name)
        return value

    def _cdf(self, law: Distribution, outputs: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the mixture's distribution function, of values ``[several, batch, …]``."""
        cdf = mixtures.cdf(law)
        if cdf is None:
            raise self._cannot("distribution function", outputs)
        return lambda values: cdf(values.unsqueeze(1)).mean(1)

    def _cannot(self, what: str, outputs: Tensor) -> TypeError:
        *first, last = self.answers(outputs)
        known = f"{', '.join(first)} or {last}" if first else last
        return TypeError(f"{type(self).__name__} has no {what}; ask for {known}")


def with_current_spelling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a likelihood; earlier files spell ``learned`` otherwise."""
    return {k: "learned" if (k, v) == ("noise", "learnt") else v for k, v in values.items()}


L = TypeVar("L", bound=type[Likelihood])

LIKELIHOODS = Registry[type[Likelihood]]("likelihood")
"""Likelihoods by the names that recipes and saved models give them."""


def register_likelihood(kind: str) -> Callable[[L], L]:
    """Register a likelihood for recipes and saved models, as a decorator of its class.

    Args:
        kind: its name there, in lower case.

    ``docs/extending/likelihood.py`` is one to copy.

    Returns:
        The decorator.
    """
    return LIKELIHOODS.register(name=kind)


CLOSED = ("distribution", "mean", "variance", "cdf", "quantiles", "interval", "log_prob", "metrics")
"""Questions that the distribution of the target alone answers."""


class FromMoments(Likelihood):
    """A likelihood whose outputs are means and variances, stacked in a last dimension."""

    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__()
        self.likelihood = likelihood

    @staticmethod
    def outputs(loc: Tensor, variance: Tensor) -> Tensor:
        """Return both as one tensor."""
        return torch.stack([loc, variance], -1)

    def distribution(self, outputs: Tensor) -> Distribution:
        law = self.likelihood.from_moments(*outputs.unbind(-1))
        assert law is not None
        return law

    def check(self, outputs: Tensor, y: Tensor) -> None:
        self.likelihood.check(outputs[..., 0], y)

    def targets(self, y: Tensor, outputs: Tensor) -> Tensor:
        return self.likelihood.targets(y, outputs)
