"""Tying: positive factors whose product is close to given standard deviations [k-tied, eq. 3]."""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import lbfgs

from leanbayes.errors import require, require_count

_FILL = 0.3  # of the first factor, added to all: a factor near zero would hardly move in its log
_UPDATES = 20
_NEWTON_STEPS = 200
_HISTORY = 100
_FLAT = 1e-10  # a slope or a curvature that is none
_TOLERANCE = 1e-13  # of the logs and of the sum


def tied_factors(scale: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Positive factors ``u [rank, out]`` and ``v [rank, in]`` whose product is close to ``scale``.

    They minimize ``Σ KL(N(μ, ŝ²) ‖ N(μ, s²)) = Σ log(s/ŝ) + ŝ²/(2 s²) − ½`` over ``ŝ = uᵀ v``. At
    an optimum of the ELBO whose likelihood is quadratic in the weights this is exactly what the
    ELBO loses. Starts at the positive parts of singular vectors; multiplicative updates, which
    never raise the sum, then L-BFGS over the logs. Nothing is drawn: equal scales give equal
    factors. For rank 1 the sum is convex in the logs; above, the optimum may be a local one.

    Example:
        >>> scale = torch.outer(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.1, 0.2]))
        >>> u, v = tied_factors(scale, 1)
        >>> torch.allclose((u.T @ v).float(), scale)
        True
    """
    require_count("rank", rank, 1)
    scale = scale.detach().double()
    require(
        bool((scale > 0).all() and scale.isfinite().all()),
        "scales must be positive and finite; look for a layer that diverged or has no noise",
    )
    size = scale.log().mean().exp()
    unit = scale / size
    u, v = _update(unit, *_start(unit, rank))
    better = _descend(unit, u, v)
    if _excess(unit, *better) <= _excess(unit, u, v):  # also False where it is not finite
        u, v = better
    return u * size.sqrt(), v * size.sqrt()


def _excess(scale: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return the average of ``ŝ²/(2 s²) − log ŝ``: the KL up to a constant."""
    tied = u.t() @ v
    return (0.5 * (tied / scale).square() - tied.log()).mean()


def _start(scale: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return non-negative parts of the leading singular pairs; the first are positive (Perron)."""
    left, values, right = torch.linalg.svd(scale, full_matrices=False)
    pairs = []
    for a, value, b in zip(left.t()[:rank], values, right, strict=False):
        parts = [(a.relu(), b.relu()), ((-a).relu(), (-b).relu())]
        x, y = max(parts, key=lambda pair: float(pair[0].norm() * pair[1].norm()))
        weight = (value / (x.norm() * y.norm()).clamp_min(1e-12)).sqrt()
        pairs.append((x * (weight * y.norm()), y * (weight * x.norm())))
    pairs += [pairs[0]] * (rank - len(pairs))
    u, v = (torch.stack(side) for side in zip(*pairs, strict=True))
    return u + _FILL * u[:1].clamp_min(1e-6), v + _FILL * v[:1].clamp_min(1e-6)


def _update(scale: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    precision = scale.square().reciprocal()
    for _ in range(_UPDATES):
        tied = u.t() @ v
        u = u * ((v @ tied.reciprocal().t()) / (v @ (tied * precision).t())).sqrt()
        tied = u.t() @ v
        v = v * ((u @ tied.reciprocal()) / (u @ (tied * precision))).sqrt()
    return u, v


class _Slopes:
    """:func:`_excess` and its gradient by the logs of both factors, in memory used again."""

    def __init__(self, scale: Tensor) -> None:
        self._precision = scale.square().reciprocal()
        self._tied, self._slope = torch.empty_like(scale), torch.empty_like(scale)
        self._one = scale.new_ones(())

    def __call__(self, u: Tensor, v: Tensor) -> tuple[float, Tensor]:
        tied = torch.mm(u.t(), v, out=self._tied)
        slope = torch.mul(tied, self._precision, out=self._slope)
        squares = slope.ravel().dot(tied.ravel())
        slope.addcdiv_(self._one, tied, value=-1)
        value = (0.5 * squares - tied.log_().sum()) / tied.numel()
        parts = [(u * (v @ slope.t())).ravel(), (v * (u @ slope)).ravel()]
        return float(value), torch.cat(parts).div_(tied.numel())


def _descend(scale: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return L-BFGS over the logs, with torch's line search.

    The steps are those of ``torch.optim.LBFGS``, which takes longer than the sum it minimizes and
    imports torch's compiler.
    """
    slopes = _Slopes(scale)

    def factors(logs: Tensor) -> tuple[Tensor, Tensor]:
        left, right = logs.exp().split([u.numel(), v.numel()])
        return left.view_as(u), right.view_as(v)

    def along(logs: Tensor, step: float, direction: Tensor) -> tuple[float, Tensor]:
        return slopes(*factors(logs + step * direction))

    logs = torch.cat([u.log().ravel(), v.log().ravel()])
    value, slope = slopes(u, v)
    history: deque[_Move] = deque(maxlen=_HISTORY)
    step = 1 / max(float(slope.abs().sum()), 1.0)
    for _ in range(_NEWTON_STEPS):
        direction = _newton_direction(slope, history)
        fall, before = slope.dot(direction), (value, slope)
        if slope.abs().max() <= _FLAT or fall > -_TOLERANCE:
            break
        start = (step, direction, value, slope, fall)
        value, slope, step, _ = lbfgs._strong_wolfe(along, logs, *start)
        move = _Move(step * direction, slope - before[1])
        logs = logs + move.by
        if move.by.abs().max() <= _TOLERANCE or abs(value - before[0]) < _TOLERANCE:
            break
        if move.curvature > _FLAT:
            history.append(move)
        step = 1.0
    return factors(logs)


class _Move:
    """A step of the logs and what it did to the slope."""

    def __init__(self, by: Tensor, turned: Tensor) -> None:
        self.by, self.turned = by, turned
        self.curvature = float(by.dot(turned))


def _newton_direction(slope: Tensor, history: Sequence[_Move]) -> Tensor:
    """Minus the slope times the inverse Hessian that past moves imply (the two loops of L-BFGS)."""
    direction, shares = -slope, []
    for move in reversed(history):
        shares.append(float(move.by.dot(direction)) / move.curvature)
        direction.sub_(move.turned, alpha=shares[-1])
    if history:
        last = history[-1]
        direction.mul_(last.curvature / last.turned.dot(last.turned))
    for move in history:
        share = shares.pop() - float(move.turned.dot(direction)) / move.curvature
        direction.add_(move.by, alpha=share)
    return direction
