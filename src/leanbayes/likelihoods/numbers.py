"""Likelihoods of real numbers and of counts 0, 1, 2, …"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, distributions, nn
from torch.distributions import Distribution

from leanbayes.distributions.gauss_hermite import normal_moments
from leanbayes.errors import require, require_positive
from leanbayes.likelihoods.base import Likelihood, register_likelihood
from leanbayes.likelihoods.incomplete_beta import incomplete_beta, log_rising

_LEAST = 1e-6
"""Dispersion below which a negative binomial is computed as if it had this much."""

Noise = Literal["fixed", "learned", "predicted"]
"""How a likelihood gets a positive number such as a standard deviation."""


def _learned(noise: str, **start: float) -> nn.Parameter | None:
    """Return the log of a positive number if it is learned; raises where number or way are none."""
    require_positive(**start)
    require(
        noise in ("fixed", "learned", "predicted"),
        f"noise is {noise!r}; it is 'fixed', 'learned' or 'predicted'",
    )
    (value,) = start.values()
    return nn.Parameter(torch.tensor(math.log(value))) if noise == "learned" else None


def _split(
    outputs: Tensor, noise: str, start: float, log: nn.Parameter | None
) -> tuple[Tensor, Tensor]:
    """Return the outputs proper, and a positive number for each of them.

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


def _split_moments(
    loc: Tensor, variance: Tensor, noise: str, start: float, log: nn.Parameter | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Means and variances of the outputs proper, and the expected square of the number beside."""
    if noise != "predicted":
        proper, number = _split(loc, noise, start, log)
        return proper, variance, number.square()
    center, raw = loc.chunk(2, -1)
    spread, of_raw = variance.chunk(2, -1)

    def number_of(raw: Tensor) -> Tensor:
        return _split(torch.cat([raw, raw], -1), noise, start, log)[1]

    mean, around = normal_moments(number_of, raw, of_raw)
    return center, spread, mean.square() + around


@register_likelihood("gaussian")
class Gaussian(Likelihood):
    """Real targets with normal noise, whose standard deviation is given, learned or predicted.

    Args:
        scale: the standard deviation, or where it starts.
        noise: ``"fixed"``; ``"learned"``, one number that is a parameter of this module; or
            ``"predicted"``: outputs then hold means and raw scales, side by side in the last
            dimension, and a raw scale of zero means ``scale``.
    """

    def __init__(self, scale: float = 1.0, noise: Noise = "fixed") -> None:
        super().__init__()
        self.log_scale = _learned(noise, scale=scale)
        self.scale, self.noise = float(scale), noise

    def distribution(self, outputs: Tensor) -> Distribution:
        loc, scale = _split(outputs, self.noise, self.scale, self.log_scale)
        return distributions.Normal(loc, scale, validate_args=False)

    def from_moments(self, loc: Tensor, variance: Tensor) -> Distribution:
        """Return ``N(m, v + E[scale²])``: exact, or matched moments if the scale is predicted."""
        loc, variance, noise = _split_moments(loc, variance, self.noise, self.scale, self.log_scale)
        return distributions.Normal(loc, (variance + noise).sqrt(), validate_args=False)


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
    """Real targets with heavy-tailed noise: Student's t, which tolerates outliers.

    The variance is ``scale² df / (df − 2)``, infinite for ``df`` of at most 2.

    Args:
        scale: the scale, or where it starts.
        noise: kind of noise, as in :class:`Gaussian`.
        df: degrees of freedom, or where they start; the fewer, the heavier the tails.
        learn_df: make them a parameter of this module.
    """

    def __init__(
        self, scale: float = 1.0, noise: Noise = "fixed", df: float = 4.0, learn_df: bool = False
    ) -> None:
        super().__init__()
        self.log_scale = _learned(noise, scale=scale)
        self.log_df = _learned("learned" if learn_df else "fixed", df=df)
        self.scale, self.noise = float(scale), noise
        self.df, self.learn_df = float(df), learn_df

    def distribution(self, outputs: Tensor) -> Distribution:
        loc, scale = _split(outputs, self.noise, self.scale, self.log_scale)
        _, df = _split(loc, "fixed", self.df, self.log_df)
        return _StudentT(df, loc, scale, validate_args=False)

    def from_moments(self, loc: Tensor, variance: Tensor) -> Distribution:
        """Return a t with as many degrees of freedom: mean and, above 2, variance are exact."""
        loc, variance, noise = _split_moments(loc, variance, self.noise, self.scale, self.log_scale)
        _, df = _split(loc, "fixed", self.df, self.log_df)
        share = torch.where(df > 2, (df - 2) / df, 1.0)
        return _StudentT(df, loc, (noise + share * variance).sqrt(), validate_args=False)


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
            f"{type(self).__name__} is for counts, and a target is negative or not a whole number; "
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
    """Counts whose variance is their mean; outputs are log rates."""

    def distribution(self, outputs: Tensor) -> Distribution:
        return _Poisson(outputs)

    def from_moments(self, loc: Tensor, variance: Tensor) -> Distribution:
        """Return a negative binomial with the mean and the variance of a log-normal rate."""
        return _NegativeBinomial(loc + variance / 2, variance.expm1().clamp_min(_LEAST))


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
        dispersion: excess variance, or its first value; toward zero it is :class:`Poisson`.
        noise: kind of dispersion: ``"fixed"``, ``"learned"`` or ``"predicted"`` beside the
            log mean, as the scale of :class:`Gaussian`.
    """

    def __init__(self, dispersion: float = 1.0, noise: Noise = "learned") -> None:
        super().__init__()
        self.log_dispersion = _learned(noise, dispersion=dispersion)
        self.dispersion, self.noise = float(dispersion), noise

    def distribution(self, outputs: Tensor) -> _NegativeBinomial:
        log_means, dispersion = _split(outputs, self.noise, self.dispersion, self.log_dispersion)
        return _NegativeBinomial(log_means, dispersion)

    def from_moments(self, loc: Tensor, variance: Tensor) -> Distribution | None:
        """Return another negative binomial, with the same mean and variance."""
        if self.noise == "predicted":
            return None
        loc, dispersion = _split(loc, self.noise, self.dispersion, self.log_dispersion)
        return _NegativeBinomial(loc + variance / 2, dispersion * variance.exp() + variance.expm1())
