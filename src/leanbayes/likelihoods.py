"""Likelihoods: what a network's outputs say about the data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Distribution, Normal

from leanbayes.errors import require, require_positive

__all__ = ["Bernoulli", "Categorical", "Gaussian", "Likelihood"]


class Likelihood(nn.Module, ABC):
    """Turns outputs ``[..., batch, …]`` into a distribution of the targets ``[batch, …]``."""

    @abstractmethod
    def distribution(self, outputs: Tensor) -> Distribution:
        """The distribution of every target, given outputs."""

    @abstractmethod
    def averaged(self, outputs: Tensor) -> Distribution:
        """The distribution whose parameters are averaged over the first axis [rank-1, eq. 12]."""

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The log likelihood of every example, ``[..., batch]``."""
        return self.example_log_prob(self.distribution(outputs), y)

    @staticmethod
    def example_log_prob(distribution: Distribution, y: Tensor) -> Tensor:
        """Log density of ``y`` summed over all but the batch dimension."""
        shape = distribution.batch_shape
        if tuple(shape[len(shape) - y.ndim :]) != tuple(y.shape):
            raise ValueError(
                f"targets have shape {tuple(y.shape)} and the outputs speak of {tuple(shape)}; "
                "reshape one of them"
            )
        counts = isinstance(distribution, TorchCategorical)
        value: Tensor = distribution.log_prob(y if counts else y.to(distribution.mean.dtype))
        return value if y.ndim <= 1 else value.flatten(value.ndim - y.ndim + 1).sum(-1)

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The negative log likelihood, a mean over examples (and samples, if there are any)."""
        return -self.log_prob(outputs, y).mean()


class Categorical(Likelihood):
    """Classes; outputs are logits over the last dimension, targets class indices.

    Example:
        >>> float(Categorical().nll(torch.zeros(1, 4), torch.tensor([2])).exp())
        4.0
    """

    def distribution(self, outputs: Tensor) -> Distribution:
        return TorchCategorical(logits=outputs, validate_args=False)

    def averaged(self, outputs: Tensor) -> Distribution:
        log_probs = F.log_softmax(outputs, -1).logsumexp(0) - math.log(outputs.shape[0])
        return TorchCategorical(logits=log_probs, validate_args=False)


class Bernoulli(Likelihood):
    """Independent binary targets; outputs are logits of the same shape."""

    def distribution(self, outputs: Tensor) -> Distribution:
        return TorchBernoulli(logits=outputs, validate_args=False)

    def averaged(self, outputs: Tensor) -> Distribution:
        log_on = F.logsigmoid(outputs).logsumexp(0)
        log_off = F.logsigmoid(-outputs).logsumexp(0)
        return TorchBernoulli(logits=log_on - log_off, validate_args=False)


class Gaussian(Likelihood):
    """Real targets with normal noise, whose standard deviation is given, learnt or predicted.

    Args:
        scale: the standard deviation, or where it starts.
        noise: ``"fixed"``; ``"learnt"``, one number that is a parameter of this module; or
            ``"predicted"``: outputs then hold means and raw scales, side by side in the last
            dimension, and a raw scale of zero means ``scale``.

    Example:
        >>> Gaussian(0.5).distribution(torch.zeros(3)).scale
        tensor([0.5000, 0.5000, 0.5000])
    """

    def __init__(
        self, scale: float = 1.0, noise: Literal["fixed", "learnt", "predicted"] = "fixed"
    ) -> None:
        super().__init__()
        require_positive(scale=scale)
        require(
            noise in ("fixed", "learnt", "predicted"),
            f"noise is {noise!r}; it is 'fixed', 'learnt' or 'predicted'",
        )
        self.noise = noise
        self.start = float(scale)
        if noise == "learnt":
            self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))

    def _parameters_of(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if self.noise == "predicted":
            if outputs.shape[-1] % 2:
                raise ValueError(
                    f"predicted noise needs a mean and a scale for each target; the last dimension "
                    f"is {outputs.shape[-1]}, an odd number"
                )
            loc, raw = outputs.chunk(2, -1)
            return loc, self.start * F.softplus(raw) / math.log(2) + 1e-6
        if self.noise == "learnt":
            return outputs, self.log_scale.exp().to(outputs.dtype).expand_as(outputs)
        return outputs, torch.full_like(outputs, self.start)

    def distribution(self, outputs: Tensor) -> Distribution:
        loc, scale = self._parameters_of(outputs)
        return Normal(loc, scale, validate_args=False)

    def averaged(self, outputs: Tensor) -> Distribution:
        loc, scale = self._parameters_of(outputs)
        return Normal(loc.mean(0), scale.mean(0), validate_args=False)
