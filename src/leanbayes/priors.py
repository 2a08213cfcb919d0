"""Priors: each spec gives the (perhaps learned) distribution that a posterior is compared with.

A new prior is one spec under ``@register_prior`` and, for a closed form, one
:func:`~leanbayes.distributions.kl.cross_entropy`.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor
from torch import distributions as td

from leanbayes import distributions as lbd
from leanbayes.errors import require, require_choice, require_positive
from leanbayes.ops import Linear, LinearOp
from leanbayes.parameters.learned import Learned, Stored
from leanbayes.parameters.transforms import Exp
from leanbayes.registry import Registry
from leanbayes.spec import Spec

__all__ = [
    "ARD",
    "PRIORS",
    "Cauchy",
    "Centered",
    "Flat",
    "GroupARD",
    "HalfCauchy",
    "He",
    "Hierarchical",
    "Laplace",
    "LogNormal",
    "LogUniform",
    "Normal",
    "Prior",
    "ScaleMixture",
    "StudentT",
    "register_prior",
]

PRIORS = Registry[type[Spec]]("prior")
"""Every prior by name."""

_NORMAL = partial(td.Normal, validate_args=False)


@dataclass(frozen=True)
class Prior(Spec):
    """What the prior of every weight of one matrix is to be."""

    weights_only: ClassVar[bool] = False
    """Whether the prior speaks of weights, so that it cannot serve rank-one factors."""

    @property
    def shared_by_model(self) -> bool:
        """Whether one learned prior serves all layers."""
        return False

    @abstractmethod
    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        """Make the prior for a weight seen as a matrix ``[out, in]``."""

    def of(self, weight: Tensor, op: LinearOp) -> Learned[td.Distribution]:
        """Make the prior for a weight in torch's own shape and the op that uses it."""
        return self(op.matrix(weight))

    def part(
        self, whole: Learned[td.Distribution], rows: Tensor, columns: Tensor
    ) -> Learned[td.Distribution]:
        """The prior of some rows and columns of a matrix: the same where all weights share one.

        Args:
            whole: the prior of the matrix, made from this spec.
            rows: which rows, in any order.
            columns: which columns.
        """
        if any(tensor.ndim for tensor in (*whole.parameters(), *whole.buffers())):
            raise NotImplementedError(f"{type(self).__name__} does not say what parts of it are")
        return whole

    def learned(
        self, family: Callable[..., td.Distribution], like: Tensor, **arguments: Stored | float
    ) -> Learned[td.Distribution]:
        """The module that holds these tensors and numbers and remembers this spec."""
        return Learned(family, spec=self, like=like, **arguments)


P = TypeVar("P", bound=type[Prior])


def register_prior(kind: P) -> P:
    """Make a prior known by its class name, so that files and recipes can name it.

    ``docs/extending/prior.py`` is one to copy.
    """
    require(
        isinstance(kind, type) and issubclass(kind, Prior),
        f"{kind!r} is not a prior; derive a frozen dataclass from lb.priors.Prior",
    )
    return PRIORS.register(kind)


@register_prior
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
        known = self.learn in (None, "layer", "model")
        require(known, f"learn is {self.learn!r}; it is None, 'layer' or 'model'")

    @property
    def shared_by_model(self) -> bool:
        return self.learn == "model"

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        if self.learn is None:
            return self.learned(_NORMAL, matrix, loc=self.loc, scale=self.scale)
        scale = Stored(matrix.new_tensor(math.log(self.scale)), Exp(), role="other")
        return self.learned(_NORMAL, matrix, loc=self.loc, scale=scale)


@register_prior
@dataclass(frozen=True)
class He(Prior):
    """``N(0, 2 / fan_in)``: a variance that keeps the size of activations [k-tied suppl., B].

    The fan-in is how many weights are added up in one output: the columns of a matrix, and 1 for an
    embedding, which looks one row up however many it has.
    """

    weights_only = True

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        return self.of(matrix, Linear())

    def of(self, weight: Tensor, op: LinearOp) -> Learned[td.Distribution]:
        matrix = op.matrix(weight)
        scale = math.sqrt(2 / op.fan_in(matrix.shape[1]))
        return self.learned(_NORMAL, matrix, loc=0.0, scale=scale)

    def part(
        self, whole: Learned[td.Distribution], rows: Tensor, columns: Tensor
    ) -> Learned[td.Distribution]:
        """A normal with the scale of the whole, whose fan-in the part has not."""
        return Normal(float(whole.value("scale")))(whole.like).train(whole.training)


@register_prior
@dataclass(frozen=True)
class Centered(Prior):
    """``N(E w, scale²)`` around the posterior's own mean, which is left to weight decay.

    The mean-field baseline of the rank-1 paper has it.

    Args:
        scale: the standard deviation.
    """

    scale: float
    weights_only = True

    def __post_init__(self) -> None:
        require_positive(scale=self.scale)

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        return self.learned(lbd.CenteredNormal, matrix, scale=self.scale)


@register_prior
@dataclass(frozen=True)
class Hierarchical(Prior):
    """``w ~ N(m, s²)`` around its own mean ``m ~ N(0, spread²)``, with ``s = scale / √fan_in``.

    The standard deviation of a weight is compared with ``s``, its mean with the wider
    ``√(s² + spread²)``, so that the whole KL can be used without underfitting. The ELBO stays a
    bound (:class:`~leanbayes.distributions.HierarchicalNormal` has the formula).

    Args:
        scale: Standard deviation around the mean, times the square root of the fan-in.
        spread: Standard deviation of the means.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(torch.nn.Linear(4, 2), lb.KTied(), Hierarchical())
        >>> float(model.prior().scale)
        0.5
    """

    scale: float = 1.0
    spread: float = 0.3
    weights_only = True

    def __post_init__(self) -> None:
        require_positive(scale=self.scale, spread=self.spread)

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        return self.of(matrix, Linear())

    def of(self, weight: Tensor, op: LinearOp) -> Learned[td.Distribution]:
        matrix = op.matrix(weight)
        scale = self.scale / math.sqrt(op.fan_in(matrix.shape[1]))
        return self.learned(lbd.HierarchicalNormal, matrix, scale=scale, spread=self.spread)


@register_prior
@dataclass(frozen=True)
class ARD(Prior):
    """Each weight's own optimal normal prior [variance, eq. 11; matrix normal, 3.1]."""

    weights_only = True

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        return self.learned(lbd.RelevanceNormal, matrix)


@register_prior
@dataclass(frozen=True)
class GroupARD(Prior):
    """``N(0, 1/(τ_i γ_j))`` with learnt relevances of rows and columns [matrix normal, 3.2].

    They follow the gradient of the ELBO; :func:`~leanbayes.training.update_priors` makes the exact
    block updates instead. A row is an output. A column is an input, in a convolution one input
    channel at one place of the kernel. The paper writes the transpose: its rows are inputs.

    Args:
        scale: where the prior standard deviation starts.
        groups: what has a relevance: every ``"row"``, every ``"column"`` or ``"both"``.
    """

    scale: float = 1.0
    groups: Literal["row", "column", "both"] = "both"
    weights_only = True

    def __post_init__(self) -> None:
        require_positive(scale=self.scale)
        require_choice("groups", self.groups, ("row", "column", "both"))

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        sizes = dict(zip(("row", "column"), matrix.shape, strict=True))
        chosen = [group for group in sizes if self.groups in (group, "both")]
        start = -2 * math.log(self.scale) / len(chosen)
        relevances = {
            f"{group}_precision": Stored(matrix.new_full((sizes[group],), start), Exp(), "other")
            for group in chosen
        }
        return self.learned(lbd.GroupRelevanceNormal, matrix, **relevances)

    @torch.no_grad()
    def part(
        self, whole: Learned[td.Distribution], rows: Tensor, columns: Tensor
    ) -> Learned[td.Distribution]:
        cut = self(whole.like.new_empty(len(rows), len(columns)))
        for name, index in (("row_precision", rows), ("column_precision", columns)):
            if name in cut.roles:
                before = whole.get_parameter(name)
                cut.get_parameter(name).copy_(before[index])
                cut.get_parameter(name).requires_grad_(before.requires_grad)
        return cut.train(whole.training)


@register_prior
@dataclass(frozen=True)
class LogUniform(Prior):
    """``p(w) ∝ 1/|w|`` [variance, eq. 6–8].

    Args:
        exact: the exact series instead of the published approximation.
    """

    exact: bool = False
    weights_only = True

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        return self.learned(partial(lbd.LogUniformDensity, exact=self.exact), matrix)


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
    """Cauchy with median ``loc``; closed form for Cauchy factors, by one sample otherwise."""

    family = td.Cauchy


@register_prior
@dataclass(frozen=True)
class LogNormal(_LocationScalePrior):
    """Log-normal on positive factors: ``log w ~ N(loc, scale²)``."""

    family = td.LogNormal


@register_prior
@dataclass(frozen=True)
class Laplace(_LocationScalePrior):
    """Laplace; in closed form for normal weights."""

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
