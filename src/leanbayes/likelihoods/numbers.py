"""Likelihoods of real numbers and of counts 0, 1, 2, …"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, distributions, nn
from torch.distributions import Distribution

from leanbayes.errors import require, require_positive
from leanbayes.likelihoods.base import Likelihood, register_likelihood
from leanbayes.likelihoods.incomplete_beta import incomplete_beta, log_rising
from leanbayes.likelihoods.mixtures import log_mean

Noise = Literal["fixed", "learnt", "predicted"]
"""How a likelihood gets a positive number such as a standard deviation."""


def _learnt(noise: str, **start: float) -> nn.Parameter | None:
    """The log of a positive number if it is learnt; raises where number or way are none."""
    require_positive(**start)
    require(
        noise in ("fixed", "learnt", "predicted"),
        f"noise is {noise!r}; it is 'fixed', 'learnt' or 'predicted'",
    )
    (value,) = start.values()
    return nn.Parameter(torch.tensor(math.log(value))) if noise == "learnt" else None


def _split(
    outputs: Tensor, noise: str, start: float, log: nn.Parameter | None
) -> tuple[Tensor, Tensor]:
    """The outputs proper, and a positive number for each of them.

    If it is predicted, raw ones stand beside the outputs in the last dimension; 0 means ``start``.
    """
    if noise == "predicted":
        require(
            outputs.shape[-1] % 2 == 0,
            "predicted noise needs a mean and a scale for each target; the last dimension is "
            f"{outputs.shape[-1]}, an odd number",
        )
        proper, raw = outputs.chunk(2, -1)
        return proper, start * F.softplus(raw) / math.log(2) + 1e-6
    if log is not None:
        return outputs, log.exp().to(outputs.dtype).expand_as(outputs)
    return outputs, torch.full_like(outputs, start)


@register_likelihood("gaussian")
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

    def __init__(self, scale: float = 1.0, noise: Noise = "fixed") -> None:
        super().__init__()
        self.log_scale = _learnt(noise, scale=scale)
        self.scale, self.noise = float(scale), noise

    def distribution(self, outputs: Tensor) -> Distribution:
        loc, scale = _split(outputs, self.noise, self.scale, self.log_scale)
        return distributions.Normal(loc, scale, validate_args=False)


class _StudentT(distributions.StudentT):
    """Torch's, with its distribution function."""

    def cdf(self, value: Tensor) -> Tensor:
        t = (value.double() - self.loc) / self.scale
        ratio = t.square() / self.df
        x, rest = 1 / (1 + 1 / ratio), 1 / (1 + ratio)
        tail = incomplete_beta(self.df / 2, t.new_tensor(0.5), rest, x) / 2
        return torch.where(t < 0, tail, 1 - tail).to(value.dtype)


@register_likelihood("student_t")
class StudentTNoise(Likelihood):
    """Real targets with heavy-tailed noise: Student's t, for which outliers are no surprise.

    The variance is ``scale² df / (df − 2)``, infinite for ``df`` of at most 2.

    Args:
        scale: the scale, or where it starts.
        noise: how it goes on, as in :class:`Gaussian`.
        df: degrees of freedom, or where they start; the fewer, the heavier the tails.
        learn_df: make them a parameter of this module.

    Example:
        >>> StudentTNoise(2.0, df=4.0).variance(torch.zeros(5, 1))
        tensor([8.])
    """

    def __init__(
        self, scale: float = 1.0, noise: Noise = "fixed", df: float = 4.0, learn_df: bool = False
    ) -> None:
        super().__init__()
        self.log_scale = _learnt(noise, scale=scale)
        self.log_df = _learnt("learnt" if learn_df else "fixed", df=df)
        self.scale, self.noise = float(scale), noise
        self.df, self.learn_df = float(df), learn_df

    def distribution(self, outputs: Tensor) -> Distribution:
        loc, scale = _split(outputs, self.noise, self.scale, self.log_scale)
        _, df = _split(loc, "fixed", self.df, self.log_df)
        return _StudentT(df, loc, scale, validate_args=False)


class _Counts(Likelihood):
    """Targets are counts; a compiled model does not look."""

    def check(self, outputs: Tensor, y: Tensor) -> None:
        super().check(outputs, y)
        self._require_counts(y)

    def targets(self, y: Tensor, outputs: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            self._require_counts(y)
        return super().targets(y, outputs)

    def _require_counts(self, y: Tensor) -> None:
        require(
            bool(((y >= 0) & (y == y.round())).all()),
            f"{type(self).__name__} is for counts, and a target is below zero or no whole number; "
            "give raw counts, or take lb.likelihoods.Gaussian",
        )


class _Poisson(distributions.Poisson):
    """Torch's, from a log rate that may be far below zero, with its distribution function."""

    def __init__(self, log_rate: Tensor) -> None:
        super().__init__(log_rate.exp(), validate_args=False)
        self.log_rate = log_rate

    def log_prob(self, value: Tensor) -> Tensor:
        return value * self.log_rate - self.rate - (value + 1).lgamma()

    def cdf(self, value: Tensor) -> Tensor:
        below = value.double().floor().clamp_min(-1) + 1
        rate = self.log_rate.detach().double().exp()
        return torch.special.gammaincc(below, rate).to(value.dtype)


@register_likelihood("poisson")
class Poisson(_Counts):
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
    """Torch's, with all digits of the log probability, and with its distribution function."""

    def __init__(self, log_mean: Tensor, dispersion: Tensor) -> None:
        logits = log_mean + dispersion.log()
        super().__init__(dispersion.reciprocal(), logits=logits, validate_args=False)
        self.log_mean, self.dispersion = log_mean, dispersion

    def log_prob(self, value: Tensor) -> Tensor:
        y, log_mean, dispersion = value.double(), self.log_mean.double(), self.dispersion.double()
        count, log_ratio = dispersion.reciprocal(), log_mean + dispersion.log()
        result = y * log_mean + (count + y) * F.logsigmoid(-log_ratio)
        return (result + log_rising(count, y) - torch.lgamma(1 + y)).to(self.log_mean.dtype)

    def cdf(self, value: Tensor) -> Tensor:
        below = value.double().floor().clamp_min(-1) + 1
        dispersion = self.dispersion.double()
        log_ratio = self.log_mean.double() + dispersion.log()
        shares = log_ratio.neg().sigmoid(), log_ratio.sigmoid()
        lower = incomplete_beta(dispersion.reciprocal(), below.clamp_min(1), *shares)
        return torch.where(below > 0, lower, 0.0).to(value.dtype)


@register_likelihood("negative_binomial")
class NegativeBinomial(_Counts):
    """Counts that vary more than their mean ``m``, by ``m + dispersion · m²``; outputs are log m.

    Args:
        dispersion: how much more, or where it starts; towards zero it is :class:`Poisson`.
        noise: how the dispersion goes on: ``"fixed"``, ``"learnt"`` or ``"predicted"`` beside the
            log mean, as the scale of :class:`Gaussian`.

    Example:
        >>> NegativeBinomial(0.5, "fixed").variance(torch.full((3, 1), 4.0).log())
        tensor([12.])
    """

    def __init__(self, dispersion: float = 1.0, noise: Noise = "learnt") -> None:
        super().__init__()
        self.log_dispersion = _learnt(noise, dispersion=dispersion)
        self.dispersion, self.noise = float(dispersion), noise

    def distribution(self, outputs: Tensor) -> _NegativeBinomial:
        log_means, dispersion = _split(outputs, self.noise, self.dispersion, self.log_dispersion)
        return _NegativeBinomial(log_means, dispersion)

    def averaged(self, outputs: Tensor) -> Distribution:
        law = self.distribution(outputs)
        dispersion = law.total_count.mean(0).reciprocal()
        on, off = (log_mean(F.logsigmoid(logits)) for logits in (law.logits, -law.logits))
        return _NegativeBinomial(on - off - dispersion.log(), dispersion)
