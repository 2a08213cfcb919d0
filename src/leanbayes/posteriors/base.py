"""What a posterior's spec is, and the registry of all of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from torch import Tensor

from leanbayes.distributions import WeightDistribution
from leanbayes.errors import require
from leanbayes.learned import Learned, Stored
from leanbayes.ops import LinearOp
from leanbayes.registry import Registry
from leanbayes.scales import Scale
from leanbayes.spec import Spec

__all__ = ["POSTERIORS", "Posterior", "register_posterior"]

POSTERIORS = Registry[type[Spec]]("posterior")
"""Every posterior by name, and :class:`Scale`, which is a part of some."""

POSTERIORS.register(Scale)


@dataclass(frozen=True)
class Posterior(Spec):
    """What the distribution of one weight matrix is to be."""

    @abstractmethod
    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        """Make the learned posterior of a weight given in torch's own shape."""

    def learned(
        self, constructor: Callable[..., WeightDistribution], **arguments: Stored
    ) -> Learned[WeightDistribution]:
        """The module that holds these tensors and remembers this spec."""
        exact = partial(constructor, validate_args=False)
        return Learned(exact, spec=self, like=None, **arguments)


P = TypeVar("P", bound=type[Posterior])


def register_posterior(kind: P) -> P:
    """Make a posterior known by its class name, so that files and recipes can name it.

    ``docs/extending/posterior.py`` is one to copy.
    """
    require(
        isinstance(kind, type) and issubclass(kind, Posterior),
        f"{kind!r} is not a posterior; derive a frozen dataclass from lb.Posterior",
    )
    return POSTERIORS.register(kind)
