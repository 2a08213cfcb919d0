"""The spec of a prior, and the registry of all of them."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import Tensor
from torch import distributions as td

from leanbayes.errors import require
from leanbayes.ops import LinearOp
from leanbayes.parameters.learned import Learned, Stored
from leanbayes.registry import Registry
from leanbayes.spec import Spec

PRIORS = Registry[type[Spec]]("prior")
"""Every prior by name."""


@dataclass(frozen=True)
class Prior(Spec):
    """Spec of the prior of every weight of one matrix."""

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
        """Return the prior of some rows and columns: the same if all weights share one.

        Args:
            whole: the prior of the matrix, made from this spec.
            rows: indices of the rows, in any order.
            columns: indices of the columns.
        """
        if any(tensor.ndim for tensor in (*whole.parameters(), *whole.buffers())):
            raise NotImplementedError(f"{type(self).__name__} does not say what parts of it are")
        return whole

    def learned(
        self, family: Callable[..., td.Distribution], like: Tensor, **arguments: Stored | float
    ) -> Learned[td.Distribution]:
        """Return the module that holds these tensors and numbers and remembers this spec."""
        return Learned(family, spec=self, like=like, **arguments)


P = TypeVar("P", bound=type[Prior])


def register_prior(kind: P) -> P:
    """Register a prior by its class name, for files and recipes.

    ``docs/extending/prior.py`` is one to copy.

    Args:
        kind: Class of the spec, a frozen dataclass.

    Returns:
        The class.

    Raises:
        ValueError: If it is not a prior.
    """
    require(
        isinstance(kind, type) and issubclass(kind, Prior),
        f"{kind!r} is not a prior; derive a frozen dataclass from lb.priors.Prior",
    )
    return PRIORS.register(kind)
