"""Prior recipes: each gives the (perhaps learned) distribution that a posterior is compared with.

A new prior is one recipe here, one entry in ``PRIORS`` and, for a closed form, one
:func:`~leanbayes.kl.cross_entropy`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch import distributions as td

from leanbayes import distributions as lbd
from leanbayes.errors import require, require_positive
from leanbayes.learned import Learned
from leanbayes.spec import Spec

__all__ = [
    "ARD",
    "PRIORS",
    "Cauchy",
    "Flat",
    "GroupARD",
    "HalfCauchy",
    "He",
    "Laplace",
    "LogNormal",
    "LogUniform",
    "Normal",
    "Prior",
    "ScaleMixture",
    "StudentT",
]


@dataclass(frozen=True)
class Prior(Spec):
    """A recipe for the prior of every weight of one matrix."""

    weights_only: ClassVar[bool] = False
    """Whether the prior speaks of weights, so that it cannot serve rank-one factors."""

    @property
    def shared_by_model(self) -> bool:
        """Whether one learned prior serves all layers."""
        return False

    @abstractmethod
    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        """Make the prior for a weight seen as a matrix ``[out, in]``."""

    def _fixed(
        self, constructor: Callable[..., td.Distribution], like: Tensor, **values: float
    ) -> Learned[td.Distribution]:
        """Numbers become buffers, so that they follow the model to its device and dtype.

        They are not saved: the recipe says them.
        """
        learned = Learned(constructor, spec=self)
        for name, value in values.items():
            tensor = torch.tensor(value, dtype=like.dtype, device=like.device)
            learned.register_buffer(name, tensor, persistent=False)
        learned.names = tuple(values)
        return learned


@dataclass(frozen=True)
class Normal(Prior):
    """``N(loc, scale²)``; ``scale`` is a standard deviation.

    Args:
        scale: the standard deviation, or where it starts if it is learnt.
        loc: the mean.
        learn: learn one scale for the ``"layer"`` or one for the whole ``"model"``
            [matrix normal, section 5.2]; its optimum is √mean E[w²].
    """

    scale: float
    loc: float = 0.0
    learn: str | None = None

    def __post_init__(self) -> None:
        require_positive(scale=self.scale)
        require(math.isfinite(self.loc), f"loc is {self.loc}; give a number")
        require(
            self.learn in (None, "layer", "model"),
            f"learn is {self.learn!r}; it is None, 'layer' or 'model'",
        )

    @property
    def shared_by_model(self) -> bool:
        return self.learn == "model"

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        normal = partial(td.Normal, validate_args=False)
        if self.learn is None:
            return self._fixed(normal, matrix, loc=self.loc, scale=self.scale)
        learned = self._fixed(normal, matrix, loc=self.loc)
        start = torch.tensor(math.log(self.scale), dtype=matrix.dtype, device=matrix.device)
        learned.register_parameter("scale", torch.nn.Parameter(start))
        learned.names = ("loc", "scale")
        learned.transforms["scale"] = torch.exp
        return learned


@dataclass(frozen=True)
class He(Prior):
    """``N(0, 2 / fan_in)``: a variance that keeps the size of activations [k-tied suppl., appendix
    B].
    """

    weights_only: ClassVar[bool] = True

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        normal = partial(td.Normal, validate_args=False)
        return self._fixed(normal, matrix, loc=0.0, scale=math.sqrt(2 / matrix.shape[1]))


@dataclass(frozen=True)
class ARD(Prior):
    """Automatic relevance determination: each weight's optimal prior [variance, eq. 11; matrix
    normal, 3.1].
    """

    weights_only: ClassVar[bool] = True

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        return self._fixed(lbd.RelevanceNormal, matrix)


@dataclass(frozen=True)
class GroupARD(Prior):
    """``N(0, 1/(τ_i γ_j))`` with learnt relevances of rows and columns [matrix normal, section
    3.2].

    They follow the gradient of the ELBO; :func:`~leanbayes.model.update_priors` makes the exact
    block updates instead.

    Args:
        scale: where the prior standard deviation starts.
    """

    scale: float = 1.0

    weights_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(scale=self.scale)

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        rows, columns = matrix.shape
        start = -math.log(self.scale)
        return Learned(
            lbd.GroupRelevanceNormal,
            spec=self,
            transforms={"row_precision": torch.exp, "column_precision": torch.exp},
            row_precision=matrix.new_full((rows,), start),
            column_precision=matrix.new_full((columns,), start),
        )


@dataclass(frozen=True)
class LogUniform(Prior):
    """``p(w) ∝ 1/|w|`` [variance, eq. 6–8].

    Args:
        exact: the exact series instead of the published approximation.
    """

    exact: bool = False

    weights_only: ClassVar[bool] = True

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        return self._fixed(partial(lbd.LogUniformDensity, exact=self.exact), matrix)


@dataclass(frozen=True)
class StudentT(Prior):
    """Student's t, compared by one sample [variance, eq. 10].

    With ``df=1e-16`` its KL is that of :class:`LogUniform` plus log(2/df) − 2.0541 a weight.

    Args:
        df: degrees of freedom.
        scale: scale, not a standard deviation.
    """

    df: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        require_positive(df=self.df, scale=self.scale)

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        student = partial(td.StudentT, validate_args=False)
        return self._fixed(student, matrix, df=self.df, loc=0.0, scale=self.scale)


@dataclass(frozen=True)
class _LocationScalePrior(Prior):
    """A torch family with a ``loc`` and a ``scale``."""

    scale: float
    loc: float = 0.0

    family: ClassVar[Callable[..., td.Distribution]]

    def __post_init__(self) -> None:
        require_positive(scale=self.scale)
        require(math.isfinite(self.loc), f"loc is {self.loc}; give a number")

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        family = partial(type(self).family, validate_args=False)
        return self._fixed(family, matrix, loc=self.loc, scale=self.scale)


@dataclass(frozen=True)
class Cauchy(_LocationScalePrior):
    """Cauchy with median ``loc``; closed form for Cauchy factors, by one sample otherwise."""

    family: ClassVar[Callable[..., td.Distribution]] = td.Cauchy


@dataclass(frozen=True)
class LogNormal(_LocationScalePrior):
    """Log-normal on positive factors: ``log w ~ N(loc, scale²)``."""

    family: ClassVar[Callable[..., td.Distribution]] = td.LogNormal


@dataclass(frozen=True)
class Laplace(_LocationScalePrior):
    """Laplace; in closed form for normal weights."""

    family: ClassVar[Callable[..., td.Distribution]] = td.Laplace


@dataclass(frozen=True)
class HalfCauchy(Prior):
    """Half-Cauchy on positive factors.

    Args:
        scale: its scale, which is also the median.
    """

    scale: float

    def __post_init__(self) -> None:
        require_positive(scale=self.scale)

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        return self._fixed(partial(td.HalfCauchy, validate_args=False), matrix, scale=self.scale)


@dataclass(frozen=True)
class ScaleMixture(Prior):
    """A wide and a narrow zero-mean normal, compared by one sample.

    Args:
        weight: the share of the wide one.
        wide: its standard deviation.
        narrow: that of the narrow one.
    """

    weight: float = 0.5
    wide: float = 1.0
    narrow: float = 0.01

    def __post_init__(self) -> None:
        require(0 < self.weight < 1, f"weight is {self.weight}; it must lie between 0 and 1")
        require_positive(wide=self.wide, narrow=self.narrow)

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        mixture = partial(lbd.NormalMixture, self.weight)
        return self._fixed(mixture, matrix, wide=self.wide, narrow=self.narrow)


@dataclass(frozen=True)
class Flat(Prior):
    """No prior: the KL is zero."""

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        return self._fixed(lbd.FlatDensity, matrix)


PRIORS: dict[str, Any] = {
    recipe.__name__: recipe
    for recipe in (
        Normal,
        He,
        ARD,
        GroupARD,
        LogUniform,
        StudentT,
        Cauchy,
        HalfCauchy,
        LogNormal,
        Laplace,
        ScaleMixture,
        Flat,
    )
}
