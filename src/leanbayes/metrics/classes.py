"""Metrics of class probabilities."""

import torch
from torch import Tensor

from leanbayes.errors import require
from leanbayes.metrics.arrays import takes_arrays
from leanbayes.metrics.scores import Score, average


@takes_arrays
def nll(log_probs: Tensor, y: Tensor) -> Score:
    """Return the negative log likelihood, in nats.

    Args:
        log_probs: log probabilities ``[examples, classes]``, such as ``Prediction.log_probs``.
        y: the true classes ``[examples]``.

    Returns:
        The NLL, with its standard error.

    Raises:
        ValueError: If the shapes do not fit.
    """
    check_classes(log_probs, y)
    return average(-log_probs.gather(-1, y.unsqueeze(-1)).squeeze(-1))


@takes_arrays
def brier(probs: Tensor, y: Tensor) -> Score:
    """Return the Brier score ``Σ_c (p_c − [c = y])²``: 0 is perfect, 2 is surely wrong.

    Published tables [k-tied] print it without its constant, as ``Σ p² − 2 p_y``: one less.

    Args:
        probs: probabilities ``[examples, classes]``.
        y: the true classes ``[examples]``.

    Returns:
        The score, with its standard error.

    Raises:
        ValueError: If the shapes do not fit.
    """
    check_classes(probs, y)
    truth = torch.nn.functional.one_hot(y, probs.shape[-1])
    return average((probs - truth).square().sum(-1))


@takes_arrays
def accuracy(probs: Tensor, y: Tensor) -> Score:
    """Return the share of examples whose most probable class is the true one.

    Args:
        probs: probabilities (or any scores) ``[examples, classes]``.
        y: the true classes ``[examples]``.

    Returns:
        The share, with its standard error.

    Raises:
        ValueError: If the shapes do not fit.
    """
    check_classes(probs, y)
    return average((probs.argmax(-1) == y).double())


def check_classes(probs: Tensor, y: Tensor) -> None:
    """Raise unless there is one class for each example, out of those that have a probability."""
    require(
        probs.ndim == 2 and y.shape == probs.shape[:1],
        f"probabilities have shape {tuple(probs.shape)} and classes {tuple(y.shape)}; "
        "give [examples, classes] and [examples]",
    )
    require(
        not y.is_floating_point() and bool(((y >= 0) & (y < probs.shape[-1])).all()),
        f"classes must be whole numbers from 0 to {probs.shape[-1] - 1}",
    )
