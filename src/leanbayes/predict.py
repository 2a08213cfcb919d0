"""Predictive samples and their summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from leanbayes.errors import require, require_seed
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.likelihoods.laws import entropy, log_mean
from leanbayes.metrics import Score
from leanbayes.model import held, members, tile

__all__ = ["Prediction", "predict"]


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


def predict(
    model: nn.Module,
    x: Tensor | tuple[Tensor, ...],
    *,
    samples: int = 100,
    batch_size: int | None = None,
    coherent: bool = False,
    seed: int | None = None,
    likelihood: Likelihood | None = None,
) -> Prediction:
    """Draw predictive samples in eval mode, without gradients; the model is left as it was.

    Args:
        model: any model; one without random layers gives equal samples.
        x: the inputs, or a tuple of them if the model takes several.
        samples: how many draws (of every member).
        batch_size: how many examples to run at once; all, if not given.
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
    require(samples >= 1, f"samples is {samples}; it must be at least 1")
    require(batch_size is None or batch_size >= 1, f"batch_size is {batch_size}; it must be ≥ 1")
    if seed is not None:
        require_seed(seed)
    inputs = x if isinstance(x, tuple) else (x,)
    with torch.no_grad(), _eval_mode(model), _seeded(seed, inputs[0].device):
        drawn = []
        for _ in range(samples):
            with held(model) if coherent else nullcontext():
                drawn.append(_outputs(model, inputs, batch_size))
    return Prediction(torch.cat(drawn), likelihood or Categorical())


def _outputs(model: nn.Module, inputs: tuple[Tensor, ...], batch_size: int | None) -> Tensor:
    """One draw for all examples: ``[members, examples, …]``."""
    count, total = members(model), len(inputs[0])
    step = batch_size or max(total, 1)
    parts = []
    for start in range(0, max(total, 1), step):
        batch = [tile(part[start : start + step], count) for part in inputs]
        y = model(*batch)
        if not isinstance(y, Tensor):
            raise TypeError(
                f"the model gives a {type(y).__name__}, and predictions need one tensor; wrap it "
                "in a module that returns the one to predict"
            )
        parts.append(y.unflatten(0, (count, y.shape[0] // count)))
    return torch.cat(parts, 1)


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode for BatchNorm and Dropout; every module gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    kind = "cuda" if device.type == "cpu" else device.type
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, enabled=seed is not None, device_type=kind):
        if seed is not None:
            torch.manual_seed(seed)
        yield
