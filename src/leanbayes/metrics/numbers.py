"""Metrics of predicted numbers."""

import torch
from torch import Tensor

from leanbayes.errors import require
from leanbayes.metrics.scores import Score, average


def rmse(mean: Tensor, y: Tensor) -> Score:
    """The root mean square error; its standard error is that of the square, to first order.

    Args:
        mean: predictions ``[examples, …]``.
        y: the truth, of the same shape.

    Example:
        >>> rmse(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 5.0]))
        3 ± 0
    """
    check_alike(mean, y)
    square = average(of_examples((mean - y).square()))
    root = square.value**0.5
    return Score(root, square.error / (2 * root) if root else 0.0)


def crps(draws: Tensor, y: Tensor) -> Score:
    """The continuous ranked probability score of predictive draws: 0 is perfect.

    ``E|X − y| − ½ E|X − X'|``, with the mean over pairs of different draws, which makes it
    unbiased for the score of the distribution that they are from [Gneiting and Raftery, 2007,
    eq. 21]. With one draw it is the absolute error.

    Args:
        draws: predicted numbers ``[draws, examples, …]``, such as ``Prediction.draw()``.
        y: the truth ``[examples, …]``.

    Example:
        >>> crps(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0])).value
        0.0
    """
    count = len(draws)
    require(count > 0, "there are no draws; give [draws, examples, …]")
    check_alike(draws[0], y)
    off = (draws.double() - y).abs().mean(0)
    rank = torch.arange(count, dtype=torch.float64, device=draws.device)
    weights = (2 * rank - count + 1).reshape(-1, *(1,) * y.ndim)
    spread = (weights * draws.double().sort(0).values).sum(0) / max(count * (count - 1), 1)
    return average(of_examples(off - spread))


def check_alike(predicted: Tensor, y: Tensor) -> None:
    """Raise unless there is one prediction for every target."""
    require(
        predicted.shape == y.shape and len(y) > 0,
        f"predictions have shape {tuple(predicted.shape)} and targets {tuple(y.shape)}; give the "
        "same, for at least one example",
    )


def of_examples(values: Tensor) -> Tensor:
    """The average of every example, ``[examples]``.

    Example:
        >>> of_examples(torch.tensor([[1.0, 3.0], [0.0, 1.0]]))
        tensor([2.0000, 0.5000], dtype=torch.float64)
    """
    return values.detach().double().reshape(len(values), -1).mean(-1)
