"""Rejection of the most uncertain examples: curves and the area under them."""

from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes.display import DisplayTable, shown_as_table
from leanbayes.errors import require
from leanbayes.metrics.scores import Score, average_over_ties, bootstrap


@shown_as_table
class Rejection(NamedTuple):
    """What is left when the most uncertain examples are rejected.

    Attributes:
        rejected: shares of examples, from none to all but one.
        kept: the average over the others: accuracy, a loss, whatever was given.
    """

    rejected: Tensor
    kept: Tensor

    def table(self) -> DisplayTable:
        """Ten rows at most, evenly over the examples."""
        places = range(0, len(self.rejected), -(-len(self.rejected) // 10))
        rows = [
            [f"{100 * float(self.rejected[i]):.0f} %", f"{float(self.kept[i]):.4g}"] for i in places
        ]
        return DisplayTable(["rejected", "average of the others"], rows, left=())


def rejection_curve(uncertainty: Tensor, values: Tensor) -> Rejection:
    """Shares rejected, most uncertain first, and the average of what is left.

    Equally uncertain examples are rejected in random order, on average.

    Args:
        uncertainty: ``[examples]``, such as ``Prediction.entropy``; a NaN makes averages NaN.
        values: whether the prediction is the true class, or a loss.

    Example:
        >>> rejection_curve(torch.tensor([0.9, 0.1]), torch.tensor([False, True])).kept
        tensor([0.5000, 1.0000], dtype=torch.float64)
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


def aurc(uncertainty: Tensor, loss: Tensor) -> Score:
    """The area under the risk–coverage curve: the loss of what is kept, over all shares kept.

    With ``k`` from one to all examples it is the mean of the average loss of the ``k`` most
    certain ones [Geifman and El-Yaniv, 2017]. The standard error is bootstrapped.

    Args:
        uncertainty: ``[examples]``.
        loss: ``[examples]``: whether the prediction is wrong, or any other loss.

    Example:
        >>> aurc(torch.tensor([0.1, 0.9]), torch.tensor([0.0, 1.0])).value
        0.25
    """
    return bootstrap(lambda u, v: rejection_curve(u, v).kept.mean(), uncertainty, loss)
