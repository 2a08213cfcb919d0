"""Estimators: how far noise is shared when a random linear map is drawn.

An estimator is a plain function ``(q, op, usage) -> map``. ``train()`` and ``eval()`` never switch
noise; only the estimator does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from leanbayes.distributions import FRESH, Map, WeightDistribution
from leanbayes.distributions.base import dispatch, rows_for
from leanbayes.errors import require
from leanbayes.ops import LinearOp, Usage
from leanbayes.registry import Registry

__all__ = [
    "ESTIMATORS",
    "Estimator",
    "auto",
    "flipout",
    "local",
    "mean",
    "register_estimator",
    "weights",
]

Estimator = Callable[[WeightDistribution, LinearOp, Usage], Map]
E = TypeVar("E", bound=Estimator)

ESTIMATORS = Registry[Estimator]("estimator")
"""Every estimator by name."""


def register_estimator(estimator: E) -> E:
    """Make an estimator known by its function's name, so that files and recipes can name it.

    ``docs/extending/estimator.py`` is one to copy.

    Args:
        estimator: Function of a distribution, an op and its usage.

    Returns:
        The function.

    Raises:
        ValueError: If the function has no name.
    """
    require(
        callable(estimator) and getattr(estimator, "__name__", "").isidentifier(),
        f"{estimator!r} is not an estimator; give a named function (q, op, usage) -> map",
    )
    return ESTIMATORS.register(estimator)


@register_estimator
def mean(q: WeightDistribution, op: LinearOp, usage: Usage) -> Map:
    """Return the posterior mean (of each member), without noise.

    Args:
        q: Distribution of the weights.
        op: Linear operation of the layer.
        usage: Batch size and reuse of weights.

    Returns:
        The map of the mean weights.
    """
    return q.mean_map(op)


@register_estimator
def weights(q: WeightDistribution, op: LinearOp, usage: Usage) -> Map:
    """Return one draw of the weights for the whole batch (one per member).

    Of a table only the entries that are looked up are drawn, if that is known.

    Args:
        q: Distribution of the weights.
        op: Linear operation of the layer.
        usage: Batch size and reuse of weights.

    Returns:
        The drawn map from inputs to outputs.
    """
    found: Map | None = None
    if usage.entries is not None:
        found = dispatch("entries", q, op, usage.entries)
    return q.weight_map(op) if found is None else found


@register_estimator
def local(q: WeightDistribution, op: LinearOp, usage: Usage) -> Map:
    """Return separate noise for every output: the local reparameterization.

    Exact only where a weight is used once per example. For convolutions and sequences every output
    keeps its law, but the correlation between positions is lost. Bernoulli and uniform weights are
    matched by their first two moments. Rank-one factors are drawn per example, exactly, everywhere.

    Args:
        q: Distribution of the weights.
        op: Linear operation of the layer.
        usage: Batch size and reuse of weights.

    Returns:
        The drawn map from inputs to outputs.
    """
    return q.local_map(op, usage.batch, usage.noise or FRESH)


@register_estimator
def flipout(q: WeightDistribution, op: LinearOp, usage: Usage) -> Map:
    """Return one draw for the batch, decorrelated by random signs per example and channel.

    Args:
        q: Distribution of the weights.
        op: Linear operation of the layer.
        usage: Batch size and reuse of weights.

    Returns:
        The drawn map from inputs to outputs.

    Raises:
        ValueError: If no dimension counts examples, or the noise is not symmetric around the mean.
    """
    if usage.batch is None:
        raise ValueError(
            "flipout draws signs for every example, and here nothing counts examples, so there is "
            "no one function to hold; use held(model, lb.estimators.weights) or "
            "estimator=lb.estimators.weights"
        )
    if not q.sign_symmetric:
        raise ValueError(
            f"flipout flips the signs of single weights, and {type(q).__name__} does not stay the "
            "same under that; use estimator=lb.estimators.weights"
        )
    mean = q.mean
    rows, columns = mean.shape
    noise = q.rsample() - mean
    signs = (
        torch.randint(2, (usage.batch, n), device=mean.device).to(mean.dtype) * 2 - 1
        for n in (rows, op.input_channels(columns))
    )
    return _FlipoutMap(op, mean, noise, *signs)


@register_estimator
def auto(q: WeightDistribution, op: LinearOp, usage: Usage) -> Map:
    """Return the default: ``local`` where it is exact, ``weights`` elsewhere.

    Args:
        q: Distribution of the weights.
        op: Linear operation of the layer.
        usage: Batch size and reuse of weights.

    Returns:
        The drawn map from inputs to outputs.
    """
    if usage.batch is not None and q.local_is_exact(op, reused=usage.reused):
        return q.local_map(op, usage.batch, usage.noise or FRESH)
    return weights(q, op, usage)


@dataclass(frozen=True, eq=False)
class _FlipoutMap:
    """``op(x, mean) + r ∘ op(x ∘ s, noise)`` with signs ``r``, ``s`` per example."""

    op: LinearOp
    mean: Tensor
    noise: Tensor
    r: Tensor
    s: Tensor

    def __call__(self, x: Tensor, /) -> Tensor:
        r, s = (rows_for(signs, x.shape[self.op.batch_dim]) for signs in (self.r, self.s))
        perturbation = self.op.scaled(x, s, self.noise)
        y = self.op(x, self.mean)
        z = y + self.op.spread(r, perturbation.ndim) * perturbation
        return z if z.dtype == y.dtype else z.to(y.dtype)
