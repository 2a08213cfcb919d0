"""Weights that are products of random factors: of low rank, or of rank one on a shared matrix."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import Cauchy, Distribution, HalfCauchy

from leanbayes.distributions.base import (
    FRESH,
    Map,
    NoiseSource,
    WeightDistribution,
    dispatch,
    rows_for,
)
from leanbayes.distributions.independent import LocationScale
from leanbayes.ops import Linear, LinearOp


class LowRankProduct(WeightDistribution):
    """``W = A B`` with independent entries of both factors: every draw has the same low rank.

    The weights are not normal, and they are correlated: those of a row share the row of ``A``,
    those of a column the column of ``B``. A matrix of low rank has no density among all matrices,
    so a prior is compared with the factors, and not with the weights.

    An output is drawn exactly in two steps, ``h = B p`` and ``y = A h``: given ``h``, the outputs
    are independent and normal.

    Args:
        left: the factor ``A [out, rank]``.
        right: the factor ``B [rank, in]``.
        validate_args: check that the parameters are finite.
    """

    independent = False

    def __init__(
        self, left: LocationScale, right: LocationScale, *, validate_args: bool | None = None
    ) -> None:
        (out, rank), (rows, columns) = left.event_shape, right.event_shape
        if rank != rows:
            raise ValueError(
                f"a left factor of {rank} columns does not fit a right factor of {rows} rows"
            )
        self.left = left
        self.right = right
        super().__init__((out, columns), validate_args=validate_args)

    def _validate(self) -> None:
        for factor in (self.left, self.right):
            factor._validate()

    @property
    def rank(self) -> int:
        """The rank of every draw."""
        return int(self.left.event_shape[1])

    @property
    def factors(self) -> tuple[LocationScale, LocationScale]:
        """Both factors."""
        return self.left, self.right

    @property
    def mean(self) -> Tensor:
        return self.left.mean @ self.right.mean

    @property
    def variance(self) -> Tensor:
        """``Σₖ (a²ᵢₖ Var bₖⱼ + Var aᵢₖ b²ₖⱼ + Var aᵢₖ Var bₖⱼ)``."""
        of_left, of_right = self.left.variance, self.right.variance
        by_right = self.left.mean.square() @ of_right
        return by_right + of_left @ (self.right.mean.square() + of_right)

    def covariance(self) -> Tensor:
        (out, columns), rank = self.event_shape, self.rank
        size = out * columns
        total = self.left.mean.new_zeros(size, size)
        for k in range(rank):
            a, b = self.left.mean[:, k], self.right.mean[k]
            products = torch.outer(a, a), torch.outer(b, b)
            moments = (
                product + torch.diag(variance)
                for product, variance in zip(
                    products, (self.left.variance[:, k], self.right.variance[k]), strict=True
                )
            )
            total = total + torch.kron(*moments) - torch.kron(*products)
        return total

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.left.rsample(sample_shape) @ self.right.rsample(sample_shape)

    def entropy(self) -> Tensor:
        raise NotImplementedError("a product of low rank has no density over matrices")

    def local_is_exact(self, op: LinearOp, *, reused: bool) -> bool:
        return not reused and op.groups == 1

    def local(
        self, x: Tensor, op: LinearOp, bias: Tensor | None = None, noise: NoiseSource = FRESH
    ) -> Tensor:
        self._require_one_group(op)
        hidden = self.right.local(x, op, None, noise).movedim(op.channel_dim, -1)
        y = self.left.local(hidden, _mixing(op), bias, noise)
        return op.silence(x, y.movedim(-1, op.channel_dim))

    def _require_one_group(self, op: LinearOp) -> None:
        if op.groups > 1:
            raise ValueError(
                "groups of a convolution share the right factor of a low-rank matrix, so there is "
                "no noise of single outputs; use estimator=lb.estimators.weights"
            )


def _mixing(op: LinearOp) -> Linear:
    """How the left factor acts on what the right one has made, with channels moved to the end."""
    return Linear(batch_dim=op.batch_dim)


RandomFactor = Distribution | Tensor
"""A factor ``[members, n]``: random, or a tensor where it is fixed."""


def _shape(factor: RandomFactor) -> torch.Size:
    return factor.shape if isinstance(factor, Tensor) else factor.batch_shape


def _center(factor: RandomFactor) -> Tensor:
    """Return the mean of a factor, or its median where a heavy tail leaves it none."""
    if isinstance(factor, Tensor):
        return factor
    if isinstance(factor, Cauchy):
        return factor.loc
    if isinstance(factor, HalfCauchy):
        return factor.scale
    return factor.mean


def _second_moment(factor: RandomFactor) -> Tensor:
    if isinstance(factor, Tensor):
        return factor.square()
    return factor.variance + _center(factor).square()


def _rsample(factor: Distribution, shape: Sequence[int]) -> Tensor:
    """Draws ``[*shape, members, n]``; Cauchy ones in a fifth of the time that torch's own take."""
    if not isinstance(factor, Cauchy | HalfCauchy):
        return factor.rsample(torch.Size(shape))
    scale = factor.scale
    angle = torch.rand(*shape, *factor.batch_shape, dtype=scale.dtype, device=scale.device)
    e = angle.sub_(0.5).mul_(math.pi).tan_()
    return torch.addcmul(factor.loc, scale, e) if isinstance(factor, Cauchy) else scale * e.abs_()


@dataclass(frozen=True, eq=False)
class PerturbedMap:
    """``r ∘ op(x ∘ s, W)`` or ``op(x + s, W) + r``, with factors per member or per example."""

    op: LinearOp
    weight: Tensor
    r: Tensor | None
    s: Tensor | None
    members: int
    add: bool

    def __call__(self, x: Tensor, /) -> Tensor:
        batch = x.shape[self.op.batch_dim]
        if batch % self.members:
            raise ValueError(
                f"batch {batch} is not a multiple of {self.members} members; call tile(x, members)"
            )
        if self.s is None:
            y = self.op(x, self.weight)
        else:
            perturbed = self.op.shifted if self.add else self.op.scaled
            y = perturbed(x, rows_for(self.s, batch), self.weight)
        if self.r is None:
            return y
        r = self.op.spread(rows_for(self.r, batch), y.ndim)
        z = self.op.silence(x, y + r) if self.add else y * r
        return z if z.dtype == y.dtype else z.to(y.dtype)


class Rank1Mixture(WeightDistribution):
    """``W = W̄ ∘ r sᵀ``: a shared ``W̄``, and random ``r``, ``s`` for each member [rank-1, eq. 1].

    It acts as ``y = r ∘ op(x ∘ s, W̄)``, exactly, with new factors for every example, for dense,
    convolutional and recurrent ops alike. ``perturb="add"`` is ``op(x + s, W̄) + r``.
    The mean is **per member**: averaged over members, random signs would cancel.

    Args:
        weight: the shared matrix ``[out, in]``.
        r: output factors ``[members, out]``, or ``None``.
        s: input-channel factors ``[members, channels]``, or ``None``.
        op: the op whose channels ``s`` scales.
        perturb: multiply or add.
        clip: bound on the absolute value of sampled factors; heavy tails need it.
        mean_kl: average the KL over members (a bound on the KL of the mixture) instead of summing
            it as the reference code does.
        weight_scale: standard deviation of a zero-mean normal prior on ``W̄``, whose ``−log p(W̄)``
            joins the KL [rank-1, eq. 2]; ``None`` leaves that to weight decay.
        validate_args: check that the parameters are finite.
    """

    independent = False

    def __init__(
        self,
        weight: Tensor,
        r: RandomFactor | None,
        s: RandomFactor | None,
        op: LinearOp | None = None,
        *,
        perturb: Literal["multiply", "add"] = "multiply",
        clip: float | None = 10.0,
        mean_kl: bool = True,
        weight_scale: float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.op = Linear() if op is None else op
        self.weight = weight
        self.r = r
        self.s = s
        self.perturb = perturb
        self.clip = clip
        self.mean_kl = mean_kl
        self.weight_scale = weight_scale
        self.members = self._count_members()
        super().__init__(weight.shape, validate_args=validate_args)

    def _count_members(self) -> int:
        members = {_shape(factor)[0] for factor in self.factors}
        if len(members) > 1:
            raise ValueError(f"r and s have different numbers of members: {sorted(members)}")
        channels = self.op.input_channels(self.weight.shape[1])
        for name, factor, n in (("r", self.r, self.weight.shape[0]), ("s", self.s, channels)):
            if factor is not None and _shape(factor)[1:] != (n,):
                raise ValueError(
                    f"{name} has shape {tuple(_shape(factor))}; it needs [members, {n}]"
                )
        return members.pop() if members else 1

    @property
    def factors(self) -> tuple[RandomFactor, ...]:
        """The factors there are."""
        return tuple(f for f in (self.r, self.s) if f is not None)

    def _each(self, value: Callable[[RandomFactor], Any]) -> list[Any]:
        return [None if factor is None else value(factor) for factor in (self.r, self.s)]

    def _matrix(self, weight: Tensor, value: Callable[[RandomFactor], Tensor]) -> Tensor:
        """``weight ∘ r sᵀ`` for factors ``[..., members, n]``; a single member has no axis."""
        if self.perturb == "add":
            raise NotImplementedError(
                "rank-one factors that are added make an affine map, which no single weight "
                "matrix gives; call the layer instead"
            )
        r, s = self._each(value)
        if s is not None:
            weight = weight * self.op.column_factor(s, weight.shape[0])
        if r is not None:
            weight = weight * r.unsqueeze(-1)
        return weight.squeeze(-3) if self.members == 1 and self.factors else weight

    @property
    def mean(self) -> Tensor:
        return self._matrix(self.weight, _center)

    @property
    def variance(self) -> Tensor:
        return self._matrix(self.weight.square(), _second_moment) - self.mean.square()

    def _draw(self, factor: RandomFactor, shape: Sequence[int] = ()) -> Tensor:
        """Return factors ``[*shape, members, n]``, clipped."""
        if isinstance(factor, Tensor):
            return factor.expand(*shape, *factor.shape)
        sample = _rsample(factor, shape)
        return sample if self.clip is None else sample.clamp(-self.clip, self.clip)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        w = self._matrix(self.weight, partial(self._draw, shape=sample_shape))
        return w if self.factors else w.expand(*sample_shape, *w.shape)

    def entropy(self) -> Tensor:
        raise NotImplementedError("a rank-one product has no density over matrices")

    def local_is_exact(self, op: LinearOp, *, reused: bool) -> bool:
        return True

    def map_of(self, op: LinearOp, draw: Callable[[RandomFactor], Any]) -> Map:
        """Return the map of factors that a function makes of ``r`` and ``s``."""
        r, s = self._each(draw)
        return PerturbedMap(op, self.weight, r, s, self.members, self.perturb == "add")

    def mean_map(self, op: LinearOp) -> Map:
        return self.map_of(op, _center)

    def weight_map(self, op: LinearOp) -> Map:
        return self.map_of(op, self._draw)

    def local_map(self, op: LinearOp, batch: int | None, noise: NoiseSource = FRESH) -> Map:
        if batch is None:
            raise ValueError(
                "rank-one factors are drawn for every example, and here nothing counts examples, "
                "so there is no one function to hold; use estimator=lb.estimators.weights"
            )
        found: Map | None = dispatch(noise.question, self, op, batch)
        if found is not None:
            return found
        examples = batch // self.members

        def per_example(factor: RandomFactor) -> Tensor:
            if isinstance(factor, Tensor):
                return factor
            drawn = noise.per_example(partial(self._draw, factor), examples)
            return drawn.transpose(0, 1).flatten(0, 1)

        return noise.seen(self.map_of(op, per_example), op)
