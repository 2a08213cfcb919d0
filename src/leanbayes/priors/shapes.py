"""Priors of other shapes: heavy-tailed, positive, mixed, flat."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor
from torch import distributions as td

from leanbayes import distributions as lbd
from leanbayes.errors import require, require_positive
from leanbayes.parameters.learned import Learned
from leanbayes.priors.base import Prior, register_prior


@dataclass(frozen=True)
class _TorchPrior(Prior):
    """A family of torch's own, whose arguments are the fields of the spec."""

    family: ClassVar[Callable[..., td.Distribution]]

    def __post_init__(self) -> None:
        require_positive(**{name: value for name, value in vars(self).items() if name != "loc"})

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        family = partial(type(self).family, validate_args=False)
        return self.learned(family, matrix, **vars(self))


@register_prior
@dataclass(frozen=True)
class StudentT(_TorchPrior):
    """Student's t, compared by one sample [variance, eq. 10].

    With ``df=1e-16`` its KL is that of :class:`LogUniform` plus log(2/df) − 2.0541 a weight.

    Args:
        df: degrees of freedom.
        scale: scale, not a standard deviation.
    """

    df: float
    scale: float = 1.0
    family = td.StudentT


@dataclass(frozen=True)
class _LocationScalePrior(_TorchPrior):
    scale: float
    loc: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(math.isfinite(self.loc), f"loc is {self.loc}; give a number")


@register_prior
@dataclass(frozen=True)
class Cauchy(_LocationScalePrior):
    """Cauchy with median ``loc``; closed form for Cauchy factors, by one sample otherwise.

    Args:
        scale: Scale, which is half the interquartile range.
        loc: Median.
    """

    family = td.Cauchy


@register_prior
@dataclass(frozen=True)
class LogNormal(_LocationScalePrior):
    """Log-normal on positive factors: ``log w ~ N(loc, scale²)``.

    Args:
        scale: Standard deviation of the logarithm.
        loc: Mean of the logarithm.
    """

    family = td.LogNormal


@register_prior
@dataclass(frozen=True)
class Laplace(_LocationScalePrior):
    """Laplace; in closed form for normal weights.

    Args:
        scale: Mean absolute deviation.
        loc: Median.
    """

    family = td.Laplace


@register_prior
@dataclass(frozen=True)
class HalfCauchy(_TorchPrior):
    """Half-Cauchy on positive factors.

    Args:
        scale: its scale, which is also the median.
    """

    scale: float
    family = td.HalfCauchy


@register_prior
@dataclass(frozen=True)
class ScaleMixture(Prior):
    """A wide and a narrow zero-mean normal, compared by one sample.

    Args:
        weight: the share of the wide one.
        wide: its standard deviation.
        narrow: that of the narrow one.

    Raises:
        ValueError: If the weight is not between 0 and 1 or a scale is not positive.
    """

    weight: float = 0.5
    wide: float = 1.0
    narrow: float = 0.01

    def __post_init__(self) -> None:
        require(0 < self.weight < 1, f"weight is {self.weight}; it must lie between 0 and 1")
        require_positive(wide=self.wide, narrow=self.narrow)

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        mixture = partial(lbd.NormalMixture, self.weight)
        return self.learned(mixture, matrix, wide=self.wide, narrow=self.narrow)


@register_prior
@dataclass(frozen=True)
class Flat(Prior):
    """No prior: the KL is zero."""

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        return self.learned(lbd.FlatDensity, matrix)
