"""Metrics of a ranking by a score: AUROC and average precision."""

import math

import torch
from torch import Tensor

from leanbayes.errors import require
from leanbayes.metrics.scores import Score, bootstrap


def auroc(scores: Tensor, positive: Tensor) -> Score:
    """The area under the ROC curve: how probably a positive has the higher score; ties count half.

    The standard error is that of DeLong and others (Biometrics, 1988):
    ``√(var(V₁) / positives + var(V₀) / negatives)``, with the :func:`placements` of both.

    Args:
        scores: ``[examples]``, such as entropies; if one is NaN, so is the area.
        positive: whether an example is one of those that should have more of it.

    Example:
        >>> auroc(torch.tensor([0.1, 0.2, 0.3, 0.15]), torch.tensor([0, 0, 1, 1]))
        0.75 ± 0.25
    """
    chosen, scores = _positives(scores, positive), scores.double()
    if bool(scores.isnan().any()):
        return Score(math.nan, math.nan)
    above = placements(scores[chosen], scores[~chosen])
    below = placements(-scores[~chosen], -scores[chosen])
    square = sum(float(v.var(correction=0)) / len(v) for v in (above, below))
    return Score(float(above.mean()), square**0.5)


def placements(scores: Tensor, others: Tensor) -> Tensor:
    """The share of others that each score exceeds; those equal count half.

    Args:
        scores: ``[examples]``.
        others: ``[other examples]``.

    Example:
        >>> placements(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0]))
        tensor([0.2500, 1.0000], dtype=torch.float64)
    """
    ordered = others.detach().sort().values
    below, reached = (
        torch.searchsorted(ordered, scores.detach().contiguous(), right=right).double()
        for right in (False, True)
    )
    return (below + reached) / (2 * len(ordered))


def average_precision(scores: Tensor, positive: Tensor) -> Score:
    """The area under the precision-recall curve, as a sum over distinct scores.

    The standard error is bootstrapped, with as many positives in every drawn test set.

    Args:
        scores: ``[examples]``; if one is NaN, so is the area.
        positive: whether an example is one of those that should have more of it.

    Example:
        >>> average_precision(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([1, 0, 1])).value
        0.8333333333333333
    """
    chosen = _positives(scores, positive)
    if bool(scores.isnan().any()):
        return Score(math.nan, math.nan)
    return bootstrap(_precision, scores, chosen, strata=chosen)


def _precision(scores: Tensor, chosen: Tensor) -> float:
    ordered, order = scores.sort(descending=True)
    last = torch.ones_like(chosen)
    last[:-1] = ordered[1:] != ordered[:-1]
    seen = torch.arange(1, len(scores) + 1, dtype=torch.float64, device=scores.device)[last]
    hits = chosen[order].double().cumsum(0)[last]
    gained = hits.diff(prepend=hits.new_zeros(1))
    return float((gained * hits / seen).sum() / hits[-1])


def _positives(scores: Tensor, positive: Tensor) -> Tensor:
    require(
        scores.ndim == 1 and positive.shape == scores.shape,
        f"scores have shape {tuple(scores.shape)} and outcomes {tuple(positive.shape)}; "
        "give one of each for every example",
    )
    chosen = positive.bool()
    require(
        bool(chosen.any()) and not bool(chosen.all()),
        "all examples are of one kind; an area under a curve needs both",
    )
    return chosen
