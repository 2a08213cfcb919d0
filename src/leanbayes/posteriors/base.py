"""The spec of a posterior, and the registry of all of them."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from leanbayes.distributions import WeightDistribution
from leanbayes.errors import require
from leanbayes.ops import LinearOp
from leanbayes.parameters.learned import AsMatrix, Learned, Stored
from leanbayes.parameters.scales import Scale
from leanbayes.registry import Registry
from leanbayes.spec import Spec

POSTERIORS = Registry[type[Spec]]("posterior")
"""Every posterior by name, and :class:`Scale`, which is a part of some."""

POSTERIORS.register(Scale)


@dataclass(frozen=True)
class Posterior(Spec):
    """Spec of the distribution of one weight matrix."""

    @abstractmethod
    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        """Make the learned posterior of a weight given in torch's own shape."""

    @torch.no_grad()
    def part(
        self, whole: Learned[WeightDistribution], op: LinearOp, rows: Tensor, columns: Tensor
    ) -> Learned[WeightDistribution]:
        """Return the law of some rows and columns of a matrix, as a separate posterior.

        Args:
            whole: the posterior of the matrix, made from this spec.
            op: the op that uses the part.
            rows: indices of the rows, in any order.
            columns: indices of the columns.
        """
        stored = self.stored_part(whole, rows, columns)
        with torch.random.fork_rng(devices=[]):  # first values are drawn, and not used
            cut = self(op.unmatrix(whole.like.cpu().new_zeros(len(rows), len(columns))), op)
        for name, tensor in stored.items():
            parameter, transform = cut.get_parameter(name), cut.transforms.get(name)
            if isinstance(transform, AsMatrix):
                tensor = transform.inverse(tensor)
            before, now = (getattr(of.transforms.get(name), "origin", 0.0) for of in (whole, cut))
            parameter.copy_(tensor + (before - now))
            parameter.requires_grad_(whole.get_parameter(name).requires_grad)
        return cut.to(whole.like.device).train(whole.training)

    def stored_part(
        self, whole: Learned[WeightDistribution], rows: Tensor, columns: Tensor
    ) -> dict[str, Tensor]:
        """Return the tensors of :meth:`part`, means as matrices; not every family can be cut."""
        raise NotImplementedError(f"{type(self).__name__} does not say what parts of it are")

    def learned(
        self, constructor: Callable[..., WeightDistribution], **arguments: Stored
    ) -> Learned[WeightDistribution]:
        """Return the module that holds these tensors and remembers this spec."""
        exact = partial(constructor, validate_args=False)
        return Learned(exact, spec=self, like=None, **arguments)


def cut_matrices(
    whole: Learned[WeightDistribution], rows: Tensor, columns: Tensor
) -> dict[str, Tensor]:
    """Rows and columns of every stored tensor, where each is a matrix or broadcasts to one."""
    cut: dict[str, Tensor] = {}
    for name in whole.roles:
        tensor, transform = whole.get_parameter(name).detach(), whole.transforms.get(name)
        matrix = transform(tensor) if isinstance(transform, AsMatrix) else tensor
        matrix = matrix if matrix.shape[0] == 1 else matrix[rows]
        cut[name] = matrix if matrix.shape[1] == 1 else matrix[:, columns]
    return cut


P = TypeVar("P", bound=type[Posterior])


def register_posterior(kind: P) -> P:
    """Register a posterior by its class name, for files and recipes.

    ``docs/extending/posterior.py`` is one to copy.

    Args:
        kind: Class of the spec, a frozen dataclass.

    Returns:
        The class.

    Raises:
        ValueError: If it is not a posterior.
    """
    require(
        isinstance(kind, type) and issubclass(kind, Posterior),
        f"{kind!r} is not a posterior; derive a frozen dataclass from lb.posteriors.Posterior",
    )
    return POSTERIORS.register(kind)
