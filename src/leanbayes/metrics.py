"""Metrics with their standard errors over examples, which torchmetrics does not give."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes.recipes import require

__all__ = ["Estimate", "accuracy", "average", "brier", "nll"]


class Estimate(NamedTuple):
    """An average over examples and its standard error.

    Attributes:
        value: the average.
        error: the standard deviation over examples divided by √examples; of an accuracy ``p``
            it is ``√(p (1 − p) / examples)``.

    Example:
        >>> print(Estimate(0.9759, 0.0048))
        0.9759 ± 0.0048
    """

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.error:.4f}"


def average(values: Tensor) -> Estimate:
    """The average of one number per example, with its standard error.

    Args:
        values: ``[examples]``, such as minus ``Prediction.log_likelihood(y)``.

    Example:
        >>> average(torch.tensor([0.0, 1.0, 1.0, 0.0]))
        Estimate(value=0.5, error=0.25)
    """
    require(
        values.ndim == 1 and len(values) > 0,
        f"values have shape {tuple(values.shape)}; give one number for each of several examples",
    )
    values = values.detach().double()
    error = values.std(correction=0) / math.sqrt(len(values))
    return Estimate(float(values.mean()), float(error))


def nll(log_probs: Tensor, y: Tensor) -> Estimate:
    """The negative log likelihood, in nats.

    Args:
        log_probs: log probabilities ``[examples, classes]``, such as ``Prediction.log_probs``.
        y: the true classes ``[examples]``.

    Example:
        >>> nll(torch.full((2, 4), 0.25).log(), torch.tensor([3, 0]))
        Estimate(value=1.3862943649291992, error=0.0)
    """
    _check(log_probs, y)
    return average(-log_probs.gather(-1, y.unsqueeze(-1)).squeeze(-1))


def brier(probs: Tensor, y: Tensor) -> Estimate:
    """The Brier score ``Σ_c (p_c − [c = y])²``: 0 is perfect, 2 is surely wrong.

    Published tables (001) print it without its constant, as ``Σ p² − 2 p_y``: one less.

    Args:
        probs: probabilities ``[examples, classes]``.
        y: the true classes ``[examples]``.

    Example:
        >>> brier(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 1]))
        Estimate(value=1.25, error=0.5303300858899106)
    """
    _check(probs, y)
    truth = torch.nn.functional.one_hot(y, probs.shape[-1])
    return average((probs - truth).square().sum(-1))


def accuracy(probs: Tensor, y: Tensor) -> Estimate:
    """The share of examples whose most probable class is the true one.

    Args:
        probs: probabilities (or any scores) ``[examples, classes]``.
        y: the true classes ``[examples]``.

    Example:
        >>> accuracy(torch.eye(4), torch.tensor([0, 1, 2, 0]))
        Estimate(value=0.75, error=0.21650635094610965)
    """
    _check(probs, y)
    return average((probs.argmax(-1) == y).double())


def _check(probs: Tensor, y: Tensor) -> None:
    require(
        probs.ndim == 2 and y.shape == probs.shape[:1],
        f"probabilities have shape {tuple(probs.shape)} and classes {tuple(y.shape)}; "
        "give [examples, classes] and [examples]",
    )
    require(
        not y.is_floating_point() and bool(((y >= 0) & (y < probs.shape[-1])).all()),
        f"classes must be whole numbers from 0 to {probs.shape[-1] - 1}",
    )
