"""Likelihoods of real numbers."""

from __future__ import annotations

from torch import Tensor, distributions
from torch.distributions import Distribution

from leanbayes.errors import require_positive
from leanbayes.likelihoods.base import Likelihood, register_likelihood
from leanbayes.likelihoods.noise import Noise, check_noise, learnt, split
from leanbayes.likelihoods.special import incomplete_beta

__all__ = ["Gaussian", "StudentTNoise"]


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
        require_positive(scale=scale)
        check_noise(noise)
        self.scale, self.noise = float(scale), noise
        self.log_scale = learnt(scale, noise == "learnt")

    def distribution(self, outputs: Tensor) -> Distribution:
        loc, scale = split(outputs, self.noise, self.scale, self.log_scale)
        return distributions.Normal(loc, scale, validate_args=False)


class _StudentT(distributions.StudentT):
    """Torch's, with its distribution function."""

    def cdf(self, value: Tensor) -> Tensor:
        t = (value - self.loc) / self.scale
        square = t.square()
        inside = incomplete_beta(t.new_tensor(0.5), self.df / 2, square / (self.df + square))
        return ((1 + t.sign() * inside) / 2).to(t.dtype)


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
        require_positive(scale=scale, df=df)
        check_noise(noise)
        self.scale, self.noise = float(scale), noise
        self.df, self.learn_df = float(df), learn_df
        self.log_scale = learnt(scale, noise == "learnt")
        self.log_df = learnt(df, learn_df)

    def distribution(self, outputs: Tensor) -> Distribution:
        loc, scale = split(outputs, self.noise, self.scale, self.log_scale)
        _, df = split(loc, "fixed", self.df, self.log_df)
        return _StudentT(df, loc, scale, validate_args=False)
