"""Normal priors: fixed, learned, by fan-in, centered, hierarchical."""

import math
from dataclasses import dataclass
from functools import partial

from torch import Tensor
from torch import distributions as td

from leanbayes import distributions as lbd
from leanbayes.errors import require, require_positive
from leanbayes.ops import Linear, LinearOp
from leanbayes.parameters.learned import Exp, Learned, Stored
from leanbayes.priors.base import Prior, register_prior

_NORMAL = partial(td.Normal, validate_args=False)


@register_prior
@dataclass(frozen=True)
class Normal(Prior):
    """``N(loc, scale²)``; ``scale`` is a standard deviation.

    Args:
        scale: the standard deviation, or where it starts if it is learned.
        loc: the mean.
        learn: learn one scale for the ``"layer"`` or one for the whole ``"model"``
            [matrix normal, section 5.2]; its optimum is √mean E[w²].

    Raises:
        ValueError: If the scale is not positive, the mean not finite or ``learn`` unknown.
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
        scale = Stored(matrix.new_tensor(0.0), Exp(unit=self.scale), role="other")
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
        """Return a normal with the scale of the whole, whose fan-in the part has not."""
        return Normal(float(whole.value("scale")))(whole.like).train(whole.training)


@register_prior
@dataclass(frozen=True)
class Centered(Prior):
    """``N(E w, scale²)`` around the posterior's own mean, which is left to weight decay.

    The mean-field baseline of the rank-1 paper has it.

    Args:
        scale: the standard deviation.

    Raises:
        ValueError: If the scale is not positive.
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

    Standard deviations are compared with ``s``, means with the wider ``√(s² + spread²)``; the ELBO
    stays a bound (:class:`~leanbayes.distributions.HierarchicalNormal` has the formula).

    Args:
        scale: Standard deviation around the mean, times the square root of the fan-in.
        spread: Standard deviation of the means.

    Raises:
        ValueError: If a scale is not positive.
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
