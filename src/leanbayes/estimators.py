"""Estimators: how far noise is shared when a random linear map is drawn.

An estimator is a plain function ``(q, op, usage) -> map``. ``train()`` and ``eval()`` never switch
noise; only the estimator does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.distributions import Map, Noise, WeightDistribution
from leanbayes.ops import LinearOp, Usage

__all__ = ["ESTIMATORS", "Estimator", "auto", "flipout", "local", "mean", "weights"]

Estimator = Callable[[WeightDistribution, LinearOp, Usage], Map]


def mean(q: WeightDistribution, op: LinearOp, usage: Usage) -> Map:
    """No noise: propagate the posterior mean (of each member)."""
    return q.map(op, usage.batch, Noise.NONE)


def weights(q: WeightDistribution, op: LinearOp, usage: Usage) -> Map:
    """One draw of the weights for the whole batch (one a member)."""
    return q.map(op, usage.batch, Noise.SHARED)


def local(q: WeightDistribution, op: LinearOp, usage: Usage) -> Map:
    """Noise of its own for every output: the local reparameterization.

    Exact only where a weight is used once per example. For convolutions and sequences every output
    keeps its law, but the correlation between positions is lost. Bernoulli and uniform weights are
    matched by their first two moments. Rank-one factors are drawn per example, exactly, everywhere.
    """
    _need_batch(usage, "local")
    return q.map(op, usage.batch, Noise.LOCAL)


def flipout(q: WeightDistribution, op: LinearOp, usage: Usage) -> Map:
    """One draw for the batch, decorrelated by random signs per example and channel."""
    _need_batch(usage, "flipout")
    if not q.sign_symmetric:
        raise ValueError(
            f"flipout flips the signs of single weights, and {type(q).__name__} does not stay the "
            "same under that; use estimator=lb.weights"
        )
    mean, batch = q.mean, usage.batch or 0
    rows, columns = mean.shape
    noise = q.rsample() - mean
    signs = (
        torch.randint(2, (batch, n), device=mean.device).to(mean.dtype) * 2 - 1
        for n in (rows, op.input_channels(columns))
    )
    return _FlipoutMap(op, mean, noise, *signs)


def auto(q: WeightDistribution, op: LinearOp, usage: Usage) -> Map:
    """The default: ``local`` where it is exact, ``weights`` elsewhere."""
    if usage.batch is not None and q.local_is_exact(op, reused=usage.reused):
        return local(q, op, usage)
    return weights(q, op, usage)


ESTIMATORS: dict[str, Estimator] = {
    "mean": mean,
    "weights": weights,
    "local": local,
    "flipout": flipout,
    "auto": auto,
}


@dataclass(frozen=True, eq=False)
class _FlipoutMap:
    """``op(x, mean) + r ∘ op(x ∘ s, noise)`` with signs ``r``, ``s`` per example."""

    op: LinearOp
    mean: Tensor
    noise: Tensor
    r: Tensor
    s: Tensor

    def __call__(self, x: Tensor, /) -> Tensor:
        perturbation = self.op.scaled(x, self.s, self.noise)
        return self.op(x, self.mean) + self.op.spread(self.r, perturbation.ndim) * perturbation


def _need_batch(usage: Usage, name: str) -> None:
    if usage.batch is None:
        raise ValueError(
            f"{name} draws noise per example, so there is no one function to hold; "
            "use held(model, lb.weights)"
        )
