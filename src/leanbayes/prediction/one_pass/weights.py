"""Outputs of random weights for random inputs: the rule of every posterior family.

With means ``M`` and variances ``S`` of the weights, and ``m`` and ``v`` of independent inputs,

    E[y] = M m,    Var[y] = S (m² + v) + M² v;

correlated weights add what their own law says of ``m``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Cauchy, Distribution, HalfCauchy

from leanbayes.distributions import (
    Delta,
    FixedMap,
    KTiedNormal,
    LocalMap,
    LowRankProduct,
    Map,
    Moments,
    Rank1Mixture,
    WeightDistribution,
)
from leanbayes.estimators import Estimator, mean
from leanbayes.kernels import EAGER, add_k_tied_variance, mode_of, product
from leanbayes.layers.forward_pass import Draws
from leanbayes.ops import Linear, LinearOp, Lookup, Usage
from leanbayes.precision import full_precision, wide
from leanbayes.prediction.one_pass.gaussian import Uncertain, need


def output_moments(
    q: WeightDistribution, op: LinearOp, x: Uncertain | Tensor, bias: Tensor | None = None
) -> Uncertain:
    """Return mean and variance of every output of ``op(x, W) + bias``."""
    if isinstance(q, LowRankProduct):
        return _in_two_steps(q, op, x, bias)
    need(q.members == 1, f"a mixture of {type(q).__name__} has no rule for means and variances")
    need(
        q.independent or type(q).moments is not WeightDistribution.moments,
        f"{type(q).__name__} has no variances of outputs",
    )
    need(
        q.independent or op.groups == 1,
        f"{type(q).__name__} is correlated between the groups of a convolution, which has no rule",
    )
    m, v = (x.loc, x.variance) if isinstance(x, Uncertain) else (x, None)
    if q.independent:
        return _of_independent(q, op, m, v, bias)
    law = _marginals(q.moments(m, op), op)
    loc = law.loc if bias is None else op.add_bias(law.loc, bias)
    if v is None:
        return Uncertain(loc, law.variance)
    variance = law.variance + op(v, q.variance + q.mean.square())
    return Uncertain(loc, variance, (q.mean, v) if type(op) is Linear else None)


def _of_independent(
    q: WeightDistribution, op: LinearOp, m: Tensor, v: Tensor | None, bias: Tensor | None
) -> Uncertain:
    if getattr(q, "loc", q) is None:  # zero means
        variance = _of_variances(q, op, m, v)
        loc = torch.zeros_like(variance)
        return Uncertain(loc if bias is None else op.add_bias(loc, bias), variance)
    loc = _affine(op, m, q.mean, bias)
    second = None if v is None else _affine(op, v, q.mean.square())
    mixed = (q.mean, v) if v is not None and type(op) is Linear else None
    if type(q) is KTiedNormal and loc.is_contiguous():
        total = torch.zeros_like(loc) if second is None else second
        if add_k_tied_variance(total, q, op, m, v):
            return Uncertain(loc, total, mixed)
    own = _of_variances(q, op, m, v)
    return Uncertain(loc, own if second is None else own.add_(second), mixed)


def _of_variances(q: WeightDistribution, op: LinearOp, m: Tensor, v: Tensor | None) -> Tensor:
    """Return what the variances of the weights add to those of outputs."""
    squares = op.square(m) if v is None else torch.addcmul(v, m, m)
    skinny = isinstance(op, Linear | Lookup)  # a convolution to few channels is slower
    return q.output_variance(squares, op) if skinny else op(squares, q.variance)


def _affine(op: LinearOp, x: Tensor, a: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``op(x, a) + bias`` by the faster of torch's libraries."""
    if type(op) is Linear and mode_of(x, a) == EAGER:
        return product(x.flatten(0, -2), a, bias).view(*x.shape[:-1], len(a))
    return op.affine(x, a, bias)


def _marginals(law: Moments, op: LinearOp) -> Uncertain:
    """Return the diagonal of a law that may be correlated over channels."""
    parts = [] if law.variance is None else [law.variance]
    if law.common is not None and law.rows is not None:
        rows = law.common.movedim(op.channel_dim, -1) * law.rows.variance
        parts.append(rows.movedim(-1, op.channel_dim))
    variance = sum(parts[1:], parts[0])
    return Uncertain(law.mean.expand_as(variance), variance)


def _in_two_steps(
    q: LowRankProduct, op: LinearOp, x: Uncertain | Tensor, bias: Tensor | None
) -> Uncertain:
    need(op.groups == 1, "groups share the right factor of a low-rank matrix, which has no rule")
    hidden = output_moments(q.right, op, x).movedim(op.channel_dim, -1)
    y = output_moments(q.left, Linear(batch_dim=op.batch_dim), hidden, bias)
    return y.movedim(-1, op.channel_dim)


@dataclass(frozen=True, eq=False)
class MomentsMap(LocalMap):
    """A map that gives the moments of its outputs, in full precision."""

    def __call__(self, x: Any, bias: Tensor | None = None, /) -> Any:
        with full_precision(x.device):
            bias = None if bias is None else wide(bias)
            return output_moments(self.q, self.op, x if isinstance(x, Uncertain) else wide(x), bias)


def _factor(factor: Distribution | Tensor) -> Any:
    """Return mean and variance of a factor of a rank-1 mixture."""
    if isinstance(factor, Tensor):
        return factor
    need(
        not isinstance(factor, Cauchy | HalfCauchy),
        f"{type(factor).__name__} factors have no variance, and so no rule",
    )
    return Uncertain(factor.mean, factor.variance)


@dataclass(eq=False)
class MomentDraws(Draws):
    """Layers that return moments instead of draws."""

    def draw(
        self,
        layer: nn.Module,
        fresh: Callable[[Estimator, Usage, LinearOp], Map],
        estimator: Estimator,
        usage: Usage,
        op: LinearOp,
    ) -> Map:
        """Return the map of a layer's means and variances."""
        if estimator is mean:
            return fresh(estimator, usage, op)
        posterior: Any = layer.posterior
        with full_precision(posterior.like.device):
            q = posterior()
        if isinstance(q, Delta):
            return FixedMap(op, q.loc.to(posterior.like.dtype))
        if isinstance(q, Rank1Mixture):
            return q.map_of(op, _factor)
        return MomentsMap(op, q)
