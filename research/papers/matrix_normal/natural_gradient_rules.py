"""Natural-gradient steps of posteriors in closed form, without an inverse or a solve.

``W = M + A E Bᵀ`` with ``E`` white moves by whitened numbers: ``M ← M + A Δ Bᵀ``, ``A ← A h(X)``,
``B ← B h(Y)`` with ``h(X) = I + X + X²/2``. To second order, and with ``tr Y = 0``,

    KL(new ‖ old) = ½‖Δ‖² + in · size(X) + out · size(Y),   size(X) = ½ Σ_{i>j} Xᵢⱼ² + Σ Xᵢᵢ²,

so the Fisher matrix is diagonal in these numbers and the natural gradient divides by it. Scales
stay positive whatever the step: ``1 + x + x²/2 ≥ ½``. ``docs/natural_gradient.md`` derives it.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leanbayes.distributions import (
    DiagonalLowRank,
    Factor,
    KroneckerNormal,
    KTiedNormal,
    LocationScale,
    Masked,
    Triangular,
    WeightDistribution,
)
from leanbayes.errors import require
from leanbayes.kernels import from_packed, to_packed
from leanbayes.kernels.triangular import row_blocks
from leanbayes.parameters.learned import Abs, Learned
from leanbayes.precision import wide

Posterior = Learned[WeightDistribution]


def quadratic_exp(x: Tensor) -> Tensor:
    """Return ``1 + x + x²/2``, which is near ``exp(x)`` for small ``x`` and positive for all."""
    return 1 + x + 0.5 * x.square()


def shortened(x: Tensor, size: Tensor, most: float) -> Tensor:
    """Return ``x``, scaled down to the size ``most`` where its quadratic form is larger."""
    return x * (most / size).sqrt().clamp_max(1.0)


class Step(NamedTuple):
    """How far to go."""

    length: float
    trust: float


class Rule(ABC):
    """How one learned posterior moves by its natural gradient."""

    def __init__(self, posterior: Posterior) -> None:
        self.posterior = posterior

    def parameters(self, role: str) -> list[nn.Parameter]:
        """Return the stored tensors that are means, or scales."""
        roles = self.posterior.roles
        return [self.posterior.get_parameter(name) for name, r in roles.items() if r == role]

    @abstractmethod
    def step(self, means: Step, scales: Step) -> None:
        """Move along the natural gradient that the gradients of the stored tensors give."""

    def gradient(self, name: str) -> Tensor | None:
        """Return the gradient of a stored tensor; ``None`` if it has none."""
        gradient = self.posterior.get_parameter(name).grad
        return None if gradient is None else wide(gradient)

    def relative_gradient(self, name: str) -> Tensor | None:
        """Return the gradient of the logarithm of a scale, however it is stored."""
        gradient = self.gradient(name)
        if gradient is None:
            return None
        stored = wide(self.posterior.get_parameter(name)).detach().requires_grad_()
        with torch.enable_grad():
            value = self.posterior.transforms[name](stored)
            (slope,) = torch.autograd.grad(value.sum(), stored)
        return torch.where(slope == 0, 0.0, gradient * value.detach() / slope)

    def store(self, name: str, value: Tensor) -> None:
        """Make this the value of an argument of the distribution."""
        transform = self.posterior.transforms.get(name)
        parameter = self.posterior.get_parameter(name)
        stored = value if transform is None else transform.inverse(value)
        parameter.copy_(stored.copysign(parameter) if isinstance(transform, Abs) else stored)

    def mean_gradient(self) -> Tensor | None:
        """Return the gradient of the matrix of means."""
        gradient = None if "loc" not in self.posterior.roles else self.gradient("loc")
        return None if gradient is None else self.posterior.transforms["loc"](gradient)

    def move_means(self, change: Tensor) -> None:
        """Add to the matrix of means."""
        stored = self.posterior.transforms["loc"].inverse(change)
        self.posterior.get_parameter("loc").add_(stored)


class IndependentRule(Rule):
    """Independent normal weights: every weight is a matrix normal of one row and one column."""

    def step(self, means: Step, scales: Step) -> None:
        scale, gradient = self.posterior.value("scale"), self.mean_gradient()
        relative = self.relative_gradient("scale")
        if gradient is not None:
            change = -means.length * scale * gradient
            self.move_means(scale * shortened(change, 0.5 * change.square(), means.trust))
        if relative is not None:
            change = -0.5 * scales.length * relative
            self.store(
                "scale", scale * quadratic_exp(shortened(change, change.square(), scales.trust))
            )


_DAMPING = 1e-6
"""Of the blocks of a k-tied Fisher matrix, which lose rank where two terms are proportional."""


class KTiedRule(Rule):
    """Independent normal weights with tied scales ``σ = Uᵀ V``.

    A column ``u`` of a factor moves by its own block of the Fisher matrix. For its logarithms that
    is ``2 Σⱼ rⱼ rⱼᵀ``, where ``r`` are the shares of the terms in ``σ``. The two factors share the
    way, because both could go all of it.
    """

    def step(self, means: Step, scales: Step) -> None:
        q, gradient = self.posterior(), self.mean_gradient()
        assert isinstance(q, KTiedNormal)
        u, v, sigma = wide(q.u), wide(q.v), wide(q.scale)
        relative = {name: self.relative_gradient(name) for name in ("u", "v")}
        if gradient is not None:
            change = -means.length * sigma * gradient
            self.move_means(sigma * shortened(change, 0.5 * change.square(), means.trust))
        shares = u.unsqueeze(-1) * v.unsqueeze(-2) / sigma
        moving = sum(each is not None for each in relative.values())
        for (name, slope), factor in zip(relative.items(), (u, v), strict=True):
            if slope is not None:
                across = shares if name == "u" else shares.mT
                step = Step(scales.length / moving, scales.trust)
                self.store(name, factor * quadratic_exp(_block_step(across, slope, step)))


def _block_step(shares: Tensor, slope: Tensor, step: Step) -> Tensor:
    """Return the change of logarithms ``[k, rows]``, given shares ``[k, rows, columns]``."""
    fisher = torch.einsum("aij,bij->iab", shares, shares)
    size = fisher.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    damped = fisher + _DAMPING * size * torch.eye(len(shares)).to(fisher)
    change = torch.linalg.solve(damped, slope.mT.unsqueeze(-1)).squeeze(-1) * (-0.5 * step.length)
    reached = torch.einsum("ia,iab,ib->i", change, fisher, change).clamp_min(0)
    return shortened(change, reached.unsqueeze(-1), step.trust * shares.shape[-1]).mT


class MatrixRule(Rule):
    """A matrix normal with lower-triangular or diagonal factors."""

    def __init__(self, posterior: Posterior) -> None:
        super().__init__(posterior)
        for side in ("row", "column"):
            tensors = [posterior.get_parameter(f"{side}_{part}") for part in ("scale", "factor")]
            require(
                len({tensor.requires_grad for tensor in tensors if tensor.numel()}) == 1,
                f"{side}_scale and {side}_factor are one factor, and only one of them is trained; "
                "freeze both or none",
            )

    def step(self, means: Step, scales: Step) -> None:
        q = self.posterior()
        assert isinstance(q, KroneckerNormal)
        gradient, row = self.mean_gradient(), self._direction("row", q.rows)
        column = self._direction("column", q.columns)
        out, columns = q.loc.shape
        if gradient is not None:
            change = -means.length * _white(q.rows, _white(q.columns, gradient.mT).mT)
            change = shortened(change, 0.5 * change.square().sum(), means.trust * change.numel())
            self.move_means(_color(q.rows, _color(q.columns, change.mT).mT))
        if row is not None:
            self._move("row", q.rows, row * (-scales.length / columns), scales.trust)
        if column is not None:
            free = column if row is None else _without_trace(column)
            self._move("column", q.columns, free * (-scales.length / out), scales.trust)

    def _direction(self, side: str, factor: Factor) -> Tensor | None:
        """``Φ(Fᵀ G)``, the lower triangle with half the diagonal; of a diagonal, its numbers."""
        relative = self.relative_gradient(f"{side}_scale")
        if relative is None:
            return None
        if isinstance(factor, DiagonalLowRank):
            return 0.5 * relative
        assert isinstance(factor, Triangular)
        below = self.gradient(f"{side}_factor")
        diagonal = relative / factor.lower.diagonal()
        gradient = torch.diag(diagonal) if below is None else from_packed(diagonal, below)
        product = lower_gram(factor.lower, gradient)
        product.diagonal().mul_(0.5)
        return product

    def _move(self, side: str, factor: Factor, x: Tensor, trust: float) -> None:
        """``F ← F h(X)`` with a step that is not too long."""
        if isinstance(factor, DiagonalLowRank):
            x = shortened(x, x.square().sum(), trust)
            self.store(f"{side}_scale", factor.scale * quadratic_exp(x))
            return
        assert isinstance(factor, Triangular)
        size = 0.5 * (x.square().sum() + x.diagonal().square().sum())
        x = shortened(x, size, trust)
        once = lower_lower(factor.lower, x)
        lower = factor.lower + once + 0.5 * lower_lower(once, x)
        diagonal, below = to_packed(lower)
        self.store(f"{side}_scale", diagonal)
        self.store(f"{side}_factor", below)


def _white(factor: Factor, x: Tensor) -> Tensor:
    """Return ``Fᵀ x``."""
    if isinstance(factor, Triangular):
        return factor.lower.mT @ x
    assert isinstance(factor, DiagonalLowRank)
    return factor.scale.unsqueeze(-1) * x


def _color(factor: Factor, x: Tensor) -> Tensor:
    """Return ``F x``."""
    return factor.color(x.mT).mT


def _without_trace(x: Tensor) -> Tensor:
    """``x`` minus its part along the identity: the scale that the other factor has already."""
    if x.ndim == 1:
        return x - x.mean()
    x = x.clone()
    x.diagonal().sub_(x.diagonal().mean())
    return x


def rule_of(posterior: Posterior) -> Rule | None:
    """Return the rule of a posterior; ``None`` if its natural gradient has no closed form here."""
    q, trained = posterior(), set(posterior.roles)
    if type(q) is KroneckerNormal:
        known = {"loc", *(f"{s}_{p}" for s in ("row", "column") for p in ("scale", "factor"))}
        sides = (q.rows, q.columns)
        served = all(isinstance(side, Triangular) or side.diagonal_only for side in sides)
        return MatrixRule(posterior) if served and trained == known else None
    if type(q) is KTiedNormal:
        return KTiedRule(posterior) if trained == {"loc", "u", "v"} else None
    weights = q.base if isinstance(q, Masked) else q
    if type(weights) is not LocationScale or weights.log_alpha is not None:
        return None
    own = {"scale"} <= trained <= {"loc", "scale"} and weights.normal_marginals
    return IndependentRule(posterior) if own and _one_each(posterior, q) else None


def _one_each(posterior: Posterior, q: WeightDistribution) -> bool:
    return posterior.value("scale").shape == q.event_shape


@torch.no_grad()
def lower_lower(a: Tensor, b: Tensor) -> Tensor:
    """Return ``A B`` of two lower-triangular matrices, without a gradient."""
    y = torch.zeros_like(a)
    for i, j in row_blocks(len(a)):
        torch.mm(a[i:j, :j], b[:j, :j], out=y[i:j, :j])
    return y


@torch.no_grad()
def lower_gram(a: Tensor, b: Tensor) -> Tensor:
    """Return the lower triangle of ``Aᵀ B`` of lower-triangular matrices, without a gradient."""
    y = torch.zeros_like(a)
    for i, j in row_blocks(len(a)):
        torch.mm(a[i:, i:j].t(), b[i:, :j], out=y[i:j, :j])
    return y.tril_()
