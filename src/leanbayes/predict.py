"""Predictive samples and their summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.context import one_pass
from leanbayes.errors import require, require_seed
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.likelihoods.laws import entropy, log_mean
from leanbayes.metrics import Score
from leanbayes.modes import evaluating
from leanbayes.passes import Passes, cut
from leanbayes.seeding import noise_by

__all__ = ["Prediction", "predict", "predict_batches", "shared_layers"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """Samples of a model's outputs, and what they say.

    Attributes:
        samples: outputs ``[samples · members, batch, …]``.
        likelihood: what they mean.
    """

    samples: Tensor
    likelihood: Likelihood = field(default_factory=Categorical)

    @property
    def sample_log_probs(self) -> Tensor:
        """Log probabilities of every sample, ``[samples, batch, …, classes]``.

        A Bernoulli output counts as the two classes off and on.
        """
        return self.likelihood.class_log_probs(self.samples)

    @property
    def log_probs(self) -> Tensor:
        """Log of the probabilities averaged over samples."""
        return log_mean(self.sample_log_probs)

    @property
    def probs(self) -> Tensor:
        """Class probabilities averaged over samples (of being on, for a Bernoulli output)."""
        return self.likelihood.probs(self.samples)

    @property
    def labels(self) -> Tensor:
        """The most probable class."""
        return self.likelihood.labels(self.samples)

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
        return self.likelihood.mean(self.samples)

    @property
    def aleatoric(self) -> Tensor:
        """Variance of the noise, averaged over samples."""
        return self.likelihood.aleatoric(self.samples)

    @property
    def epistemic(self) -> Tensor:
        """Variance of the means over samples."""
        return self.likelihood.epistemic(self.samples)

    @property
    def variance(self) -> Tensor:
        """The predictive variance: aleatoric plus epistemic."""
        return self.likelihood.variance(self.samples)

    @property
    def has_classes(self) -> bool:
        """Whether targets are one of several names, on or off included, and not numbers."""
        return self.likelihood.has_classes(self.samples)

    @property
    def answers(self) -> tuple[str, ...]:
        """What this prediction can be asked for: names of its properties and methods."""
        return self.likelihood.answers(self.samples)

    def cdf(self, y: Tensor) -> Tensor:
        """The predictive probability of a target of at most ``y``, elementwise."""
        return self.likelihood.cdf(self.samples, y)

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Quantiles of the predictive mixture, ``[levels, batch, …]``, by bisection."""
        return self.likelihood.quantiles(self.samples, levels)

    def draw(self) -> Tensor:
        """One random target for every sample, ``[samples, batch, …]``."""
        return self.likelihood.sample(self.samples)

    def log_likelihood(self, y: Tensor) -> Tensor:
        """The log predictive density of every example, averaged over samples inside the log."""
        return log_mean(self.likelihood.log_prob(self.samples, y))

    def metrics(self, y: Tensor) -> dict[str, Score]:
        """How good the samples are: what the likelihood measures, with standard errors.

        Example:
            >>> prediction = Prediction(torch.zeros(2, 3, 4))
            >>> prediction.metrics(torch.tensor([0, 1, 2]))["brier"]
            Score(value=0.75, error=0.0)
        """
        return self.likelihood.metrics(self.samples, y)

    def to(self, *args: Any, **kwargs: Any) -> Prediction:
        """The same with samples on another device or of another dtype, as :meth:`torch.Tensor.to`.

        Example:
            >>> Prediction(torch.zeros(2, 3, 4)).to(torch.float64).samples.dtype
            torch.float64
        """
        return replace(self, samples=self.samples.to(*args, **kwargs))


def predict(
    model: nn.Module,
    x: Tensor | tuple[Tensor, ...],
    *,
    samples: int = 100,
    batch_size: int | None = None,
    batch_dim: int | Sequence[int] = 0,
    coherent: bool = False,
    seed: int | None = None,
    likelihood: Likelihood | None = None,
) -> Prediction:
    """Draw predictive samples in eval mode, without gradients; the model is left as it was.

    Threads and tasks may predict with one model at the same time. A layer that the model calls
    more than once in a forward pass keeps its draw for the whole pass.

    Where a pass keeps examples apart and each has noise of its own, all samples run at once. Every
    example keeps its law, but a number of noise serves about ten of them: averages over a test set
    scatter up to a quarter more between seeds. ``coherent=True`` is for joint draws of examples.

    Args:
        model: any model; one without random layers gives equal samples.
        x: the inputs, or a tuple of them if the model takes several.
        samples: how many draws (of every member).
        batch_size: how many examples to run at once at most.
        batch_dim: which dimension of the inputs counts examples, or one for each of them: 1 for
            ``[time, batch, …]``. In the samples examples come first.
        coherent: let each draw be one function over the whole data set, instead of new noise for
            every batch.
        seed: makes the draws repeatable; the global generator is left as it was.
        likelihood: what the outputs mean; :class:`~leanbayes.Categorical` if not given.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.Normal(1.0))
        >>> predict(model, torch.randn(5, 3), samples=10).probs.shape
        torch.Size([5, 2])
    """
    _check_options(samples, batch_size, seed)
    passes = Passes(model, *_dimensions(x, batch_dim), batch_size)
    with torch.no_grad(), evaluating(model):
        while True:
            with noise_by(seed, model):
                drawn = passes.draw(samples, coherent)
            if drawn is not None:
                return Prediction(drawn, likelihood or Categorical())


def _check_options(samples: int, batch_size: int | None, seed: int | None) -> None:
    require(samples >= 1, f"samples is {samples}; it must be at least 1")
    require(batch_size is None or batch_size >= 1, f"batch_size is {batch_size}; it must be ≥ 1")
    if seed is not None:
        require_seed(seed)


def predict_batches(
    model: nn.Module,
    x: Tensor | tuple[Tensor, ...],
    *,
    samples: int = 100,
    batch_size: int | None = None,
    batch_dim: int | Sequence[int] = 0,
    coherent: bool = False,
    seed: int | None = None,
    likelihood: Likelihood | None = None,
) -> Iterator[Prediction]:
    """Predict one slice of the examples after the other: memory for one slice is enough.

    A loop takes what it wants of each, where :func:`predict` keeps all samples of all examples.

    Args:
        model: any model.
        x: the inputs, or a tuple of them if the model takes several.
        samples: how many draws (of every member).
        batch_size: how many examples a slice has; if not given, fewer for more samples.
        batch_dim: which dimension of the inputs counts examples, or one for each of them.
        coherent: let each draw be one function over the whole data set.
        seed: makes the draws repeatable.
        likelihood: what the outputs mean; :class:`~leanbayes.Categorical` if not given.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.Normal(1.0))
        >>> parts = predict_batches(model, torch.randn(500, 3), samples=1000)
        >>> torch.cat([part.probs for part in parts]).shape
        torch.Size([500, 2])
    """
    require(samples >= 1, f"samples is {samples}; it must be at least 1")
    step = batch_size or max(_SLICE // samples, 1)
    require(step >= 1, f"batch_size is {step}; it must be ≥ 1")
    inputs, dims = _dimensions(x, batch_dim)
    if coherent and seed is None:
        seed = int(torch.randint(2**62, ()))
    for start in range(0, max(inputs[0].shape[dims[0]], 1), step):
        own = seed if coherent or seed is None else (seed + start) % 2**63
        part = cut(inputs, dims, start, step)
        drawn = predict(model, part, samples=samples, batch_dim=dims, coherent=coherent, seed=own)
        yield replace(drawn, likelihood=likelihood or drawn.likelihood)


def shared_layers(model: nn.Module, *inputs: Tensor) -> frozenset[nn.Module]:
    """The random maps that one forward pass calls more than once, with other noise each time."""
    with torch.no_grad(), evaluating(model), noise_by(0, model), one_pass() as current:
        model(*inputs)
    return frozenset(current.repeated)


_SLICE = 2**14
"""How many samples of single examples :func:`predict_batches` keeps at once."""


def _dimensions(
    x: Tensor | tuple[Tensor, ...], batch_dim: int | Sequence[int]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The inputs, and which dimension of each counts examples."""
    inputs = x if isinstance(x, tuple) else (x,)
    for value in inputs:
        if not isinstance(value, Tensor):
            raise TypeError(f"an input is a {type(value).__name__}; give tensors")
    dims = (batch_dim,) * len(inputs) if isinstance(batch_dim, int) else tuple(batch_dim)
    require(
        len(dims) == len(inputs)
        and all(0 <= d < t.ndim for d, t in zip(dims, inputs, strict=True)),
        f"batch_dim is {batch_dim}; inputs have shapes {[tuple(t.shape) for t in inputs]}",
    )
    return inputs, dims
