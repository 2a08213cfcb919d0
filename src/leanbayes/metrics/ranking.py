"""Metrics of a ranking by a score: AUROC, average precision, rejection of the most uncertain."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes.display import DisplayTable, shown_as_table
from leanbayes.errors import require
from leanbayes.metrics.scores import Score, average_over_ties, bootstrap, takes_arrays


@takes_arrays
def auroc(scores: Tensor, positive: Tensor) -> Score:
    """Return the area under the ROC curve, P(positive scores higher); ties count half.

    The standard error is that of DeLong and others (Biometrics, 1988):
    ``√(var(V₁) / positives + var(V₀) / negatives)``, with the :func:`placements` of both.

    Args:
        scores: ``[examples]``, such as entropies; if one is NaN, so is the area.
        positive: whether an example is one of those that should have more of it.

    Returns:
        The area, with its standard error.
    """
    chosen, scores = _positives(scores, positive), scores.double()
    if bool(scores.isnan().any()):
        return Score(math.nan, math.nan)
    above = placements(scores[chosen], scores[~chosen])
    below = placements(-scores[~chosen], -scores[chosen])
    square = sum(float(v.var(correction=0)) / len(v) for v in (above, below))
    return Score(float(above.mean()), square**0.5)


def placements(scores: Tensor, others: Tensor) -> Tensor:
    """Return the share of others that each score exceeds; those equal count half."""
    ordered = others.detach().sort().values
    below, reached = (
        torch.searchsorted(ordered, scores.detach().contiguous(), right=right).double()
        for right in (False, True)
    )
    return (below + reached) / (2 * len(ordered))


@takes_arrays
def average_precision(scores: Tensor, positive: Tensor) -> Score:
    """Return the area under the precision-recall curve, as a sum over distinct scores.

    The standard error is bootstrapped, with as many positives in every drawn test set.

    Args:
        scores: ``[examples]``; if one is NaN, so is the area.
        positive: whether an example is one of those that should have more of it.

    Returns:
        The area, with its standard error.
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


@shown_as_table
class Rejection(NamedTuple):
    """Averages over the remaining examples when the most uncertain ones are rejected.

    Attributes:
        rejected: shares of examples, from none to all but one.
        kept: the average over the others: accuracy, a loss, whatever was given.
    """

    rejected: Tensor
    kept: Tensor

    def table(self) -> DisplayTable:
        """Return ten rows at most, evenly over the examples."""
        places = range(0, len(self.rejected), -(-len(self.rejected) // 10))
        rows = [
            [f"{100 * float(self.rejected[i]):.0f}%", f"{float(self.kept[i]):.4g}"] for i in places
        ]
        return DisplayTable(["rejected", "average of the others"], rows, left=())


@takes_arrays
def rejection_curve(uncertainty: Tensor, values: Tensor) -> Rejection:
    """Return shares rejected, most uncertain first, and the average of what is left.

    Equally uncertain examples are rejected in random order, on average.

    Args:
        uncertainty: ``[examples]``, such as ``Prediction.entropy``; a NaN makes averages NaN.
        values: whether the prediction is the true class, or a loss.

    Returns:
        Shares rejected, and averages of the rest.

    Raises:
        ValueError: If the shapes do not fit.
    """
    require(
        uncertainty.ndim == 1 and uncertainty.shape == values.shape and len(values) > 0,
        f"uncertainties have shape {tuple(uncertainty.shape)} and values {tuple(values.shape)}; "
        "give one of each for every example",
    )
    kept = average_over_ties(uncertainty.detach(), values.detach()).cumsum(0).flip(0)
    kept = torch.where(uncertainty.isnan().any(), torch.nan, kept)
    left = torch.arange(len(values), 0, -1, dtype=torch.float64, device=kept.device)
    return Rejection(1 - left / len(values), kept / left)


@takes_arrays
def aurc(uncertainty: Tensor, loss: Tensor) -> Score:
    """Return the area under the risk–coverage curve (AURC).

    With ``k`` from one to all examples it is the mean of the average loss of the ``k`` most
    certain ones [Geifman and El-Yaniv, 2017]. The standard error is bootstrapped.

    Args:
        uncertainty: ``[examples]``.
        loss: ``[examples]``: whether the prediction is wrong, or any other loss.

    Returns:
        The area, with its standard error.
    """
    return bootstrap(lambda u, v: rejection_curve(u, v).kept.mean(), uncertainty, loss)
