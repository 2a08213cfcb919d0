"""The contract of a distribution over weight matrices: laws of outputs, noise and drawn maps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from leanbayes.distributions.covariance import Factor
from leanbayes.errors import require
from leanbayes.ops import LinearOp

ENTROPY_OF_UNIT_NORMAL = 0.5 * math.log(2 * math.pi * math.e)


STAND_INS: dict[tuple[str, type, type], Callable[..., Any]] = {}
"""Functions ``(q, other, *arguments)`` that answer a question for one exact class of distribution
and one exact class of op or prior; where they return ``None``, and for subclasses, formulas do."""


def dispatch(question: str, q: object, other: object, *arguments: Any) -> Any:
    """Return the answer of the function that stands in for a formula; ``None`` without one."""
    stand_in = STAND_INS.get((question, type(q), type(other)))
    return None if stand_in is None else stand_in(q, other, *arguments)


def rows_for(factor: Tensor, batch: int) -> Tensor:
    """Rows that broadcast over a batch: those of a member or example repeat over its block."""
    return factor if factor.shape[0] in (1, batch) else in_blocks(factor, batch)


def in_blocks(factor: Tensor, batch: int) -> Tensor:
    """Repeat the row of each member over its block of a batch."""
    repeats = batch // factor.shape[0]
    if isinstance(repeats, int):
        return factor.repeat_interleave(repeats, 0)
    return factor.unsqueeze(1).expand(-1, repeats, *factor.shape[1:]).flatten(0, 1)


class Map(Protocol):
    """A drawn linear map."""

    def __call__(self, x: Tensor, /) -> Tensor: ...


def safe_sqrt(variance: Tensor) -> Tensor:
    """Return the square root, with gradient zero instead of infinite at zero (dead units)."""
    return variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()


class NoiseSource(ABC):
    """The source of noise in outputs: it decides which examples and samples share a draw."""

    question: str

    @abstractmethod
    def outputs(
        self, q: WeightDistribution, x: Tensor, op: LinearOp, bias: Tensor | None = None
    ) -> Tensor:
        """Draw ``op(x, W) + bias`` from the distribution of every output."""

    @abstractmethod
    def draw(self, law: Moments, op: LinearOp) -> Tensor:
        """Draw outputs from their distribution."""

    @abstractmethod
    def per_example(self, draw: Callable[[tuple[int, ...]], Tensor], examples: int) -> Tensor:
        """Draw ``[examples, …]`` by a function of the leading shape."""

    @abstractmethod
    def seen(self, drawn: Map, op: LinearOp) -> Map:
        """Return a map whose draws come from :meth:`per_example`, ready to be applied."""


class FreshNoise(NoiseSource):
    """A new number for every output."""

    question = "local"

    def outputs(
        self, q: WeightDistribution, x: Tensor, op: LinearOp, bias: Tensor | None = None
    ) -> Tensor:
        stand_in = STAND_INS.get(("local", type(q), type(op)))
        y: Tensor | None = None if stand_in is None else stand_in(q, op, x, bias)
        if y is not None:
            return y
        y = op.silence(x, q.moments(x, op).rsample(op, self))
        return y if bias is None else op.add_bias(y, bias)

    def draw(self, law: Moments, op: LinearOp) -> Tensor:
        y = law.mean
        if law.variance is not None:
            drawn = dispatch("noise", self, None, y, law.variance)
            if drawn is None:
                e = torch.randn_like(law.variance)
                drawn = torch.addcmul(y, safe_sqrt(law.variance), e)
            y = drawn
        if law.common is not None and law.rows is not None:
            std = safe_sqrt(law.common).movedim(op.channel_dim, -1)
            e = torch.randn(*std.shape[:-1], law.rows.width, dtype=std.dtype, device=std.device)
            y = y + (std * law.rows.color(e)).movedim(-1, op.channel_dim)
        return y

    def per_example(self, draw: Callable[[tuple[int, ...]], Tensor], examples: int) -> Tensor:
        return draw((examples,))

    def seen(self, drawn: Map, op: LinearOp) -> Map:
        return drawn


FRESH = FreshNoise()


class Moments(NamedTuple):
    """The law of ``y = op(x, W)`` at one position: a mean and one or two kinds of noise.

    ``y = mean + √variance ∘ ε + √common · (rows ε′)``; the second kind is correlated over the
    output channels with covariance ``common · rows rowsᵀ``.
    """

    mean: Tensor
    variance: Tensor | None = None
    common: Tensor | None = None
    rows: Factor | None = None

    def rsample(self, op: LinearOp, noise: NoiseSource = FRESH) -> Tensor:
        """Draw outputs, independently at every position."""
        return noise.draw(self, op)

    def covariance(self, op: LinearOp) -> Tensor:
        """Return the dense covariance of output channels at every position, ``[..., out, out]``."""
        parts: list[Any] = []
        if self.variance is not None:
            parts.append(torch.diag_embed(self.variance.movedim(op.channel_dim, -1)))
        if self.common is not None and self.rows is not None:
            parts.append(self.common.movedim(op.channel_dim, -1).unsqueeze(-1) * self.rows.dense)
        return sum(parts[1:], parts[0])


@dataclass(frozen=True, eq=False)
class FixedMap:
    """One weight matrix for every example."""

    op: LinearOp
    weight: Tensor

    def __call__(self, x: Tensor, bias: Tensor | None = None, /) -> Tensor:
        return self.op.affine(x, self.weight, bias)


@dataclass(frozen=True, eq=False)
class LocalMap:
    """Outputs that are drawn from their own law at each application."""

    op: LinearOp
    q: WeightDistribution
    noise: NoiseSource = FRESH

    def __call__(self, x: Tensor, bias: Tensor | None = None, /) -> Tensor:
        return self.q.local(x, self.op, bias, self.noise)


class WeightDistribution(Distribution, ABC):
    """A distribution over matrices ``[out, in]``.

    A subclass gives ``mean``, ``variance``, ``rsample`` and, where they exist, ``entropy`` and
    ``log_prob``; everything else has a default. Distributions are values: they own no parameters.
    Their methods are formulas. A function may stand in for a formula of one exact class
    (:data:`STAND_INS`), never for that of a subclass.

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
        """Raise on parameters that are not finite, or too short; called only where asked to."""
        for name, value in vars(self).items():
            if not isinstance(value, Tensor):
                continue
            name = name.removeprefix("_").removeprefix("given_")
            given = f"{type(self).__name__} was given a {name}"
            require(
                not value.is_floating_point() or value.dtype.itemsize >= 4,
                f"{given} of {value.dtype}, which cannot hold variances; give {name}.float()",
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

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw matrices ``[*sample_shape, out, in]``, differentiably."""
        drawn: Tensor | None = None if sample_shape else dispatch("draw", self, None)
        return self.draw(sample_shape) if drawn is None else drawn

    def draw(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Compute :meth:`rsample` by its formula."""
        raise NotImplementedError(f"{type(self).__name__} has no rsample")

    def entropies(self) -> Tensor:
        """Return the entropy of each weight, ``[out, in]``; only where weights are independent."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy of single weights")

    def entropy(self) -> Tensor:
        """Return the entropy of the whole matrix, a scalar."""
        return self.entropies().sum()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of matrices ``[..., out, in]``."""
        raise NotImplementedError(f"{type(self).__name__} has no density in closed form")

    def total_variance(self) -> Tensor:
        """Return the sum of all variances."""
        return self.variance.sum()

    def log_inverse_alpha(self) -> Tensor:
        """Return ``log(mean² / variance)`` of each weight: the −log α of variational dropout."""
        ratio = self.mean.square() / self.variance
        return ratio.clamp_min(torch.finfo(ratio.dtype).tiny).log()

    def total_correlation(self) -> Tensor:
        """Return the sum of the marginal entropies minus the entropy: the KL due to correlation."""
        if self.independent:
            return self.mean.new_zeros(())
        return (0.5 * self.variance.log() + ENTROPY_OF_UNIT_NORMAL).sum() - self.entropy()

    def covariance(self) -> Tensor:
        """Return the dense covariance of ``vec(W)`` in row-major order; for small matrices."""
        if not self.independent:
            raise NotImplementedError(f"{type(self).__name__} gives no dense covariance")
        return torch.diag(self.variance.flatten())

    def local_is_exact(self, op: LinearOp, *, reused: bool) -> bool:
        """Return whether noise per output and random weights give one example the same law."""
        return self.independent and self.normal_marginals and not reused

    def moments(self, x: Tensor, op: LinearOp) -> Moments:
        """Return the law of ``op(x, W)`` at each position (the local reparameterization)."""
        if not self.independent:
            raise ValueError(
                f"{type(self).__name__} has no closed-form distribution of its outputs; use "
                f"estimator=lb.estimators.weights"
            )
        return Moments(op(x, self.mean), self.output_variance(op.square(x), op))

    def output_variance(self, squares: Tensor, op: LinearOp) -> Tensor:
        """Return the variance of outputs for inputs with these expected squares, if independent."""
        return op(squares, self.variance)

    def local(
        self, x: Tensor, op: LinearOp, bias: Tensor | None = None, noise: NoiseSource = FRESH
    ) -> Tensor:
        """Return outputs that are drawn from :meth:`moments`, plus a bias ``[out]``."""
        return noise.outputs(self, x, op, bias)

    def mean_map(self, op: LinearOp) -> Map:
        """Return the map of the mean (of each member), without noise."""
        return FixedMap(op, self.mean)

    def weight_map(self, op: LinearOp) -> Map:
        """Return the map of one draw of the weights (one per member), for batches of any size."""
        return FixedMap(op, self.rsample())

    def local_map(self, op: LinearOp, batch: int | None, noise: NoiseSource = FRESH) -> Map:
        """Return a map with separate noise for each of ``batch`` examples (``None``: each output).

        Only families whose examples share a draw between outputs need to know how many there are.
        """
        return LocalMap(op, self, noise)


class Delta(WeightDistribution):
    """All mass on one matrix: a point estimate.

    Its entropy is taken as zero, so that ``kl`` is ``−log p(loc)``: maximum a posteriori.
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

    def local_map(self, op: LinearOp, batch: int | None, noise: NoiseSource = FRESH) -> Map:
        return FixedMap(op, self.loc)
