"""Likelihoods of outputs of which means and variances are known, without samples."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from leanbayes.likelihoods.base import Likelihood

CLOSED = ("distribution", "mean", "variance", "cdf", "quantiles", "interval", "log_prob", "metrics")
"""Questions that the distribution of the target alone answers."""


class FromMoments(Likelihood):
    """A likelihood whose outputs are means and variances, stacked in a last dimension.

    Args:
        likelihood: One that has :meth:`~leanbayes.likelihoods.Likelihood.from_moments`.
    """

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
