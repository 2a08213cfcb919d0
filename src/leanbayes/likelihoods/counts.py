"""Likelihoods of counts 0, 1, 2, …"""

from __future__ import annotations

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from leanbayes.errors import require_positive
from leanbayes.likelihoods.base import Likelihood, register_likelihood
from leanbayes.likelihoods.mixture import log_mean
from leanbayes.likelihoods.noise import Noise, check_noise, learnt, split
from leanbayes.likelihoods.special import incomplete_beta

__all__ = ["NegativeBinomial", "Poisson"]


class _Poisson(distributions.Poisson):
    """Torch's, from a log rate that may be far below zero, with its distribution function."""

    def __init__(self, log_rate: Tensor) -> None:
        super().__init__(log_rate.exp(), validate_args=False)
        self.log_rate = log_rate

    def log_prob(self, value: Tensor) -> Tensor:
        return value * self.log_rate - self.rate - (value + 1).lgamma()

    def cdf(self, value: Tensor) -> Tensor:
        below = value.floor().clamp_min(-1) + 1
        return torch.special.gammaincc(below, self.rate.detach())


@register_likelihood("poisson")
class Poisson(Likelihood):
    """Counts whose variance is their mean; outputs are log rates.

    Example:
        >>> Poisson().quantiles(torch.zeros(5, 1), [0.1, 0.5, 0.99]).flatten()
        tensor([0., 1., 4.])
    """

    def distribution(self, outputs: Tensor) -> Distribution:
        return _Poisson(outputs)

    def averaged(self, outputs: Tensor) -> Distribution:
        return _Poisson(log_mean(outputs))


class _NegativeBinomial(distributions.NegativeBinomial):
    """Torch's, with its distribution function."""

    def cdf(self, value: Tensor) -> Tensor:
        below = value.floor().clamp_min(-1) + 1
        upper = incomplete_beta(below.clamp_min(1), self.total_count, self.probs)
        return torch.where(below > 0, 1 - upper, 0.0).to(value.dtype)


@register_likelihood("negative_binomial")
class NegativeBinomial(Likelihood):
    """Counts that vary more than their mean ``m``, by ``m + dispersion · m²``; outputs are log m.

    Args:
        dispersion: how much more, or where it starts; towards zero it is :class:`Poisson`.
        noise: how the dispersion goes on: ``"fixed"``, ``"learnt"`` or ``"predicted"`` beside the
            log mean, as the scale of :class:`~leanbayes.Gaussian`.

    Example:
        >>> NegativeBinomial(0.5, "fixed").variance(torch.full((3, 1), 4.0).log())
        tensor([12.])
    """

    def __init__(self, dispersion: float = 1.0, noise: Noise = "learnt") -> None:
        super().__init__()
        require_positive(dispersion=dispersion)
        check_noise(noise)
        self.dispersion, self.noise = float(dispersion), noise
        self.log_dispersion = learnt(dispersion, noise == "learnt")

    def distribution(self, outputs: Tensor) -> Distribution:
        log_mean, dispersion = split(outputs, self.noise, self.dispersion, self.log_dispersion)
        logits = log_mean + dispersion.log()
        return _NegativeBinomial(dispersion.reciprocal(), logits=logits, validate_args=False)
