"""The contract of a distribution over weight matrices, and the law of a random output."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from leanbayes.distributions.covariance import Factor
from leanbayes.errors import require
from leanbayes.kernels import (
    Folded,
    KLTerm,
    add_noise,
    compiled_noise,
    fused_kl,
    in_graph,
    safe_sqrt,
)
from leanbayes.ops import LinearOp
from leanbayes.precision import full_precision, is_rounded, output_dtype, wide, wide_dtype
from leanbayes.prediction.vectorized.samples import Fold, current_fold

__all__ = [
    "ENTROPY_OF_UNIT_NORMAL",
    "Delta",
    "FixedMap",
    "LocalMap",
    "Map",
    "Moments",
    "RoundedMap",
    "WeightDistribution",
    "draws_anew",
    "rounded",
    "rows_for",
    "with_op",
]

ENTROPY_OF_UNIT_NORMAL = 0.5 * math.log(2 * math.pi * math.e)


def rows_for(factor: Tensor, batch: int) -> Tensor:
    """Rows that broadcast over a batch: those of a member, or of an example, repeat over its block.

    Example:
        >>> rows_for(torch.tensor([[1], [2]]), 4).flatten()
        tensor([1, 1, 2, 2])
    """
    if factor.shape[0] in (1, batch):
        return factor
    return factor.repeat_interleave(batch // factor.shape[0], 0)


class Map(Protocol):
    """A drawn linear map."""

    def __call__(self, x: Tensor, /) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class FixedMap:
    """One weight matrix for every example: what a fused kernel can run."""

    op: LinearOp
    weight: Tensor

    def __call__(self, x: Tensor, bias: Tensor | None = None, /) -> Tensor:
        return self.op.affine(x, self.weight, bias)


@dataclass(frozen=True, eq=False)
class LocalMap:
    """Fresh noise for every output, drawn from its own law at each application."""

    op: LinearOp
    q: WeightDistribution

    def __call__(self, x: Tensor, bias: Tensor | None = None, /) -> Tensor:
        if is_rounded(x):
            y = RoundedMap(self)(x)
            return y if bias is None else self.op.add_bias(y, bias)
        fold = current_fold()
        if fold is not None:
            return self.q.folded(fold, x, self.op, bias)
        return self.q.local(x, self.op, bias)


@dataclass(frozen=True, eq=False)
class RoundedMap:
    """A map that is applied in full precision, for inputs and outputs in half of it.

    Args:
        drawn: the map.
        dtype: the dtype of the layer's parameters; that of the input if not given.
    """

    drawn: Map
    dtype: torch.dtype | None = None

    def __call__(self, x: Tensor, /) -> Tensor:
        with full_precision(x.device):
            y = self.drawn(wide(x))
        same = x.dtype if x.is_floating_point() else y.dtype
        return y.to(output_dtype(x, self.dtype or same))


def rounded(drawn: Map, dtype: torch.dtype) -> Map:
    """A drawn map for a layer whose parameters have this dtype.

    One matrix for the whole batch is rounded and runs in torch's kernels for halves; noise is
    applied in full precision, where its digits and its range are, and the output is rounded.
    """
    if dtype == wide_dtype(dtype):
        return drawn
    if isinstance(drawn, FixedMap):
        return replace(drawn, weight=drawn.weight.to(dtype))
    return RoundedMap(drawn, dtype)


def draws_anew(drawn: Map) -> bool:
    """Whether a map draws at every application, so that it is no one function."""
    return isinstance(drawn.drawn if isinstance(drawn, RoundedMap) else drawn, LocalMap)


def with_op(drawn: Map, op: LinearOp) -> Map:
    """The same draw for an op that differs in the size of outputs."""
    if isinstance(drawn, RoundedMap):
        return replace(drawn, drawn=with_op(drawn.drawn, op))
    held: Any = drawn  # the maps of this package are dataclasses with an op
    return replace(held, op=op)


class Moments(NamedTuple):
    """The law of ``y = op(x, W)`` at one position: a mean and one or two kinds of noise.

    ``y = mean + √variance ∘ ε + √common · (rows ε′)``; the second kind is correlated over the
    output channels with covariance ``common · rows rowsᵀ``.
    """

    mean: Tensor
    variance: Tensor | None = None
    common: Tensor | None = None
    rows: Factor | None = None

    def rsample(self, op: LinearOp) -> Tensor:
        """Draw outputs, independently at every position."""
        y = self.mean
        if self.variance is not None:
            add = compiled_noise if in_graph(y, self.variance) else add_noise
            y = add(y, self.variance)
        if self.common is not None and self.rows is not None:
            std = safe_sqrt(self.common).movedim(op.channel_dim, -1)
            e = torch.randn(*std.shape[:-1], self.rows.width, dtype=std.dtype, device=std.device)
            y = y + (std * self.rows.color(e)).movedim(-1, op.channel_dim)
        return y

    def covariance(self, op: LinearOp) -> Tensor:
        """The covariance over output channels at every position, dense: ``[..., out, out]``."""
        parts: list[Tensor] = []
        if self.variance is not None:
            parts.append(torch.diag_embed(self.variance.movedim(op.channel_dim, -1)))
        if self.common is not None and self.rows is not None:
            parts.append(self.common.movedim(op.channel_dim, -1).unsqueeze(-1) * self.rows.dense)
        return sum(parts[1:], parts[0])


class WeightDistribution(Distribution, ABC):
    """A distribution over matrices ``[out, in]``.

    A subclass gives ``mean``, ``variance``, ``rsample`` and, where they exist, ``entropy`` and
    ``log_prob``; everything else has a default. Distributions are values: they own no parameters.

    Attributes:
        independent: whether the weights are mutually independent.
        normal_marginals: whether each weight is normal.
        sign_symmetric: whether flipping the sign of any weight's deviation from the mean leaves the
            distribution as it is, which is what flipout needs.
        discrete: whether the distribution has no density.
        members: more than one for a mixture; the batch then holds contiguous blocks, one a member.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (torch's own protocol)
    independent: bool = True
    normal_marginals: bool = False
    sign_symmetric: bool = False
    discrete: bool = False
    members: int = 1

    def __init__(self, shape: Sequence[int], *, validate_args: bool | None = None) -> None:
        super().__init__(torch.Size(), torch.Size(shape), validate_args=False)
        if Distribution._validate_args if validate_args is None else validate_args:
            self._validate()

    def _validate(self) -> None:
        """Raise on parameters that are not finite, or halves; called only where asked to."""
        for name, value in vars(self).items():
            if not isinstance(value, Tensor):
                continue
            name = name.removeprefix("_")
            given = f"{type(self).__name__} was given a {name}"
            require(
                value.dtype == wide_dtype(value.dtype),
                f"{given} of {value.dtype}, which has no room for variances; give {name}.float()",
            )
            require(
                bool(torch.isfinite(value).all()),
                f"{given} that is not finite; look for a NaN or an infinity where it was computed",
            )

    @property
    def support(self) -> Any:
        """Where the weights can lie: everywhere, unless a subclass says otherwise."""
        return constraints.independent(constraints.real, 2)

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The mean, ``[out, in]`` (``[members, out, in]`` for a mixture)."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The variance of each weight, in the shape of the mean."""

    @abstractmethod
    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw matrices ``[*sample_shape, out, in]``, differentiably."""

    def entropies(self) -> Tensor:
        """The entropy of each weight, ``[out, in]``; only where weights are independent."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy of single weights")

    def entropy(self) -> Tensor:
        """The entropy of the whole matrix, a scalar."""
        return self.entropies().sum()

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of matrices ``[..., out, in]``."""
        raise NotImplementedError(f"{type(self).__name__} has no density in closed form")

    def total_variance(self) -> Tensor:
        """The sum of all variances."""
        return self.variance.sum()

    def log_inverse_alpha(self) -> Tensor:
        """``log(mean² / variance)`` of each weight: minus the log α of variational dropout."""
        ratio = self.mean.square() / self.variance
        return ratio.clamp_min(torch.finfo(ratio.dtype).tiny).log()

    def kl_term(self, loc: float, scale: float, learnt: Tensor | None = None) -> KLTerm | None:
        """The KL from one normal for all weights, for a fused function; ``None``: there is none.

        Args:
            loc: the mean of the normal.
            scale: its standard deviation.
            learnt: the tensor that has it, if it is learnt.
        """
        return None

    def compiled_kl(self, loc: Tensor, scale: Tensor) -> Tensor | None:
        """The KL from one normal as an operator of a compiled graph; ``None``: there is none."""
        return None

    def kl_from_normal(self, loc: float, scale: float) -> Tensor:
        """The KL from one normal for all weights, which needs only two sums and the entropy."""
        term = self.kl_term(loc, scale)
        if term is not None:
            return fused_kl([term])
        distance = self.total_variance() + (self.mean - loc).square().sum()
        constant = self.mean.numel() * (math.log(scale) + 0.5 * math.log(2 * math.pi))
        return 0.5 * distance / scale**2 + constant - self.entropy()

    def total_correlation(self) -> Tensor:
        """Sum of the marginal entropies minus the entropy: what correlation costs in any KL."""
        if self.independent:
            return self.mean.new_zeros(())
        return (0.5 * self.variance.log() + ENTROPY_OF_UNIT_NORMAL).sum() - self.entropy()

    def covariance(self) -> Tensor:
        """The dense covariance of ``vec(W)`` in row-major order; for tests and small matrices."""
        if not self.independent:
            raise NotImplementedError(f"{type(self).__name__} gives no dense covariance")
        return torch.diag(self.variance.flatten())

    def local_is_exact(self, op: LinearOp, *, reused: bool) -> bool:
        """Whether noise per output has the law that random weights would give a single example."""
        return self.independent and self.normal_marginals and not reused

    def moments(self, x: Tensor, op: LinearOp) -> Moments:
        """The law of ``op(x, W)`` at each position (the local reparameterization)."""
        if not self.independent:
            raise ValueError(
                f"{type(self).__name__} has no closed law of its outputs; use "
                f"estimator=lb.estimators.weights"
            )
        return Moments(op(x, self.mean), op(op.square(x), self.variance))

    def local(self, x: Tensor, op: LinearOp, bias: Tensor | None = None) -> Tensor:
        """Outputs with noise of their own, plus a bias ``[out]``; families fuse what they can."""
        y = op.silence(x, self.moments(x, op).rsample(op))
        return y if bias is None else op.add_bias(y, bias)

    def folded(self, fold: Fold, x: Tensor, op: LinearOp, bias: Tensor | None = None) -> Tensor:
        """The same for all samples of a prediction at once."""
        return fold.draw(self, op, x, bias)

    def folded_draws(
        self, x: Tensor, op: LinearOp, bias: Tensor | None, fold: Folded
    ) -> Tensor | None:
        """What a fused function gives for all samples of rows; ``None`` where there is none."""
        return None

    def mean_map(self, op: LinearOp) -> Map:
        """The map of the mean (of each member), without noise."""
        return FixedMap(op, self.mean)

    def weight_map(self, op: LinearOp) -> Map:
        """The map of one draw of the weights (one a member), for batches of any size."""
        return FixedMap(op, self.rsample())

    def local_map(self, op: LinearOp, batch: int | None) -> Map:
        """A map with noise of its own for every one of ``batch`` examples; ``None``: every output.

        Only families whose examples share a draw between outputs need to know how many there are.
        """
        return LocalMap(op, self)


class Delta(WeightDistribution):
    """All mass on one matrix: a point estimate.

    Its entropy is taken as zero, so that ``kl`` is ``−log p(loc)``: maximum a posteriori.

    Example:
        >>> float(Delta(torch.ones(2, 2)).variance.sum())
        0.0
    """

    sign_symmetric = True

    def __init__(self, loc: Tensor, *, validate_args: bool | None = None) -> None:
        self.loc = loc
        super().__init__(loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return torch.zeros_like(self.loc)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.loc.expand(*sample_shape, *self.loc.shape)

    def entropies(self) -> Tensor:
        return torch.zeros_like(self.loc)

    def local_is_exact(self, op: LinearOp, *, reused: bool) -> bool:
        return True

    def local_map(self, op: LinearOp, batch: int | None) -> Map:
        return FixedMap(op, self.loc)
