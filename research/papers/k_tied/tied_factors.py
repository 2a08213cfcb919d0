"""Tying: positive factors whose product is close to given standard deviations [k-tied, eq. 3]."""

import torch
from torch import Tensor

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


def _descend(scale: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return what L-BFGS over the logs of both factors ends with."""
    logs = [factor.log().requires_grad_() for factor in (u, v)]
    optimizer = torch.optim.LBFGS(
        logs,
        max_iter=_NEWTON_STEPS,
        tolerance_grad=_FLAT,
        tolerance_change=_TOLERANCE,
        history_size=_HISTORY,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        optimizer.zero_grad()
        value = _excess(scale, *(log.exp() for log in logs))
        value.backward()
        return float(value.detach())

    with torch.enable_grad():
        optimizer.step(closure)
    left, right = (log.detach().exp() for log in logs)
    return left, right
