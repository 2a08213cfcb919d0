"""Likelihoods of classes, and of on or off."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, distributions
from torch.distributions import Distribution

from leanbayes.likelihoods.base import Likelihood, register_likelihood
from leanbayes.likelihoods.laws import log_mean

__all__ = ["Bernoulli", "Categorical"]


@register_likelihood("categorical")
class Categorical(Likelihood):
    """Classes; outputs are logits over the last dimension, targets class indices.

    Example:
        >>> float(Categorical().nll(torch.zeros(1, 4), torch.tensor([2])).exp())
        4.0
    """

    def distribution(self, outputs: Tensor) -> Distribution:
        return distributions.Categorical(logits=outputs, validate_args=False)

    def averaged(self, outputs: Tensor) -> Distribution:
        return self.distribution(log_mean(F.log_softmax(outputs, -1)))

    def targets(self, y: Tensor, outputs: Tensor) -> Tensor:
        return y  # half precision could not tell 257 classes

    def class_log_probs(self, outputs: Tensor) -> Tensor:
        return F.log_softmax(outputs, -1)


@register_likelihood("bernoulli")
class Bernoulli(Likelihood):
    """Independent binary targets; outputs are logits of the same shape.

    Example:
        >>> Bernoulli().mean(torch.zeros(5, 2))
        tensor([0.5000, 0.5000])
    """

    def distribution(self, outputs: Tensor) -> Distribution:
        return distributions.Bernoulli(logits=outputs, validate_args=False)

    def averaged(self, outputs: Tensor) -> Distribution:
        off, on = log_mean(self.class_log_probs(outputs)).unbind(-1)
        return self.distribution(on - off)
