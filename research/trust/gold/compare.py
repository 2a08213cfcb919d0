"""How near predictions are to those of the gold posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from research.trust.gold.problems import Problem

_GRID = 2001


def agreement(probs: Tensor, gold: Tensor) -> float:
    """Share of examples with the same most probable class.

    Example:
        >>> a, b = torch.tensor([[0.6, 0.4], [0.6, 0.4]]), torch.tensor([[0.9, 0.1], [0.1, 0.9]])
        >>> agreement(a, b)
        0.5
    """
    return float((probs.argmax(-1) == gold.argmax(-1)).double().mean())


def total_variation(probs: Tensor, gold: Tensor) -> float:
    """Mean total variation distance of class probabilities, from 0 to 1.

    Example:
        >>> round(total_variation(torch.tensor([[0.6, 0.4]]), torch.tensor([[0.9, 0.1]])), 6)
        0.3
    """
    return float((probs.double() - gold.double()).abs().sum(-1).mean() / 2)


@dataclass(frozen=True)
class Predicted:
    """Predictions on the test inputs of a problem.

    Attributes:
        outputs: draws of a regression's function, ``[draws, tests]``.
        probs: class probabilities, ``[tests, classes]``.
        variance: that of class probabilities over draws.
    """

    outputs: Tensor | None = None
    probs: Tensor | None = None
    variance: Tensor | None = None


def gold_of(problem: Problem, arrays: dict[str, Any]) -> Predicted:
    """The mean over all chains."""
    if problem.kind == "numbers":
        return Predicted(outputs=torch.from_numpy(arrays["outputs"]).double())
    probs, variance = (torch.from_numpy(arrays[name]).double() for name in ("probs", "variance"))
    return Predicted(probs=probs.mean(0), variance=variance)


def halves(problem: Problem, arrays: dict[str, Any]) -> tuple[Predicted, Predicted]:
    """Two halves of the draws, whose distance is what Monte Carlo noise alone would give."""
    if problem.kind == "numbers":
        outputs = torch.from_numpy(arrays["outputs"]).double()
        middle = len(outputs) // 2
        return Predicted(outputs=outputs[:middle]), Predicted(outputs=outputs[middle:])
    probs = torch.from_numpy(arrays["probs"]).double()
    middle, variance = len(probs) // 2, torch.from_numpy(arrays["variance"]).double()
    first, second = probs[:middle].mean(0), probs[middle:].mean(0)
    return Predicted(None, first, variance), Predicted(None, second, variance)


def compared(problem: Problem, found: Predicted, gold: Predicted) -> dict[str, float]:
    """Distance of means, ratio of standard deviations, total variation, agreement, NLL.

    ``mean_distance`` is a root mean square; ``std_ratio`` a geometric mean over test inputs of
    standard deviations of the function (regression) or of probabilities (classes).
    """
    if found.outputs is not None and gold.outputs is not None:
        return _compared_numbers(problem, found.outputs, gold.outputs)
    assert found.probs is not None
    assert gold.probs is not None
    assert found.variance is not None
    assert gold.variance is not None
    target = problem.y_test.long().view(-1, 1)
    return {
        "agreement": agreement(found.probs, gold.probs),
        "total_variation": total_variation(found.probs, gold.probs),
        "mean_distance": _rms(found.probs - gold.probs),
        "std_ratio": _ratio(found.variance.mean(-1), gold.variance.mean(-1)),
        "nll": -float(found.probs.gather(1, target).log().mean()),
        "gold_nll": -float(gold.probs.gather(1, target).log().mean()),
    }


def _compared_numbers(problem: Problem, found: Tensor, gold: Tensor) -> dict[str, float]:
    low = min(float(found.min()), float(gold.min())) - 4 * problem.noise
    high = max(float(found.max()), float(gold.max())) + 4 * problem.noise
    grid = torch.linspace(low, high, _GRID, dtype=torch.float64)
    step = float(grid[1] - grid[0])
    densities = [_density(each, grid, problem.noise) for each in (found, gold)]
    apart = (densities[0] - densities[1]).abs().sum(-1) * step / 2
    y = problem.y_test.double().view(-1)
    return {
        "total_variation": float(apart.mean()),
        "mean_distance": _rms(found.mean(0) - gold.mean(0)),
        "std_ratio": _ratio(found.var(0, correction=0), gold.var(0, correction=0)),
        "nll": _nll(found, y, problem.noise),
        "gold_nll": _nll(gold, y, problem.noise),
    }


def _density(outputs: Tensor, grid: Tensor, noise: float) -> Tensor:
    """Mixture of normals over draws, ``[tests, grid]``, a test input at a time."""
    return torch.stack([
        (-0.5 * ((grid - column[:, None]) / noise) ** 2).exp().mean(0) for column in outputs.mT
    ]) / (noise * math.sqrt(2 * math.pi))  # fmt: skip


def _nll(outputs: Tensor, y: Tensor, noise: float) -> float:
    log_probs = -0.5 * ((y - outputs) / noise) ** 2 - math.log(noise * math.sqrt(2 * math.pi))
    return -float((log_probs.logsumexp(0) - math.log(len(outputs))).mean())


def _rms(difference: Tensor) -> float:
    return float(difference.square().mean().sqrt())


def _ratio(found: Tensor, gold: Tensor) -> float:
    """Geometric mean of ratios of standard deviations; 0 where nothing varies."""
    if not bool((found > 0).all()):
        return 0.0
    return float((found.log() - gold.log()).mean().div(2).exp())


def read(path: Any) -> dict[str, Any]:
    """Read the arrays of one problem."""
    with np.load(path, allow_pickle=False) as file:
        return dict(file)
