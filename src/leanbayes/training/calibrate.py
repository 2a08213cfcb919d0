"""Calibration after training: one number of the likelihood, fitted on held-out data."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.likelihoods import Categorical, Gaussian, Likelihood
from leanbayes.prediction.predict import Method
from leanbayes.training.batches import batches_of
from leanbayes.training.objective import BatchObjective, mixture_nll

_WIDEST = math.log(100.0)
_STEPS = 40


def calibrate(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Likelihood | None = None,
    method: Method = "samples",
    samples: int = 50,
    batch_size: int = 128,
    target: str = "labels",
    output: Callable[[Any], Tensor] | None = None,
    seed: int = 0,
) -> Likelihood:
    """Fit a softmax temperature, or the scale of normal noise, on held-out data.

    The number is the one with the lowest NLL of the mixture of samples. It never makes a network
    more accurate; it makes probabilities and intervals fit.

    Args:
        model: Any model: converted, an ensemble, MC dropout or a plain network.
        data: Held-out pair ``(x, y)``, Dataset or DataLoader, not used for training.
        likelihood: That of the outputs; classes if not given, otherwise ``Gaussian`` with noise
            that is not predicted.
        method: ``"samples"`` or ``"moments"``, as in :func:`leanbayes.predict`.
        samples: Draws per prediction.
        batch_size: Number of examples per pass, for arrays and Datasets.
        target: Key of the targets in batches that are dictionaries.
        output: Chooses the tensor that the likelihood describes.
        seed: Random seed of the draws.

    Returns:
        The calibrated likelihood; pass it to :func:`leanbayes.predict`.

    Raises:
        ValueError: The likelihood has no number to fit.

    Example:
        >>> import leanbayes as lb
        >>> x, y = torch.randn(200, 3), torch.randint(2, (200,))  # labels of pure chance
        >>> net = nn.Linear(3, 2)
        >>> lb.calibrate(net, (x, y)).temperature > 1
        True
    """
    likelihood = Categorical() if likelihood is None else likelihood
    predicted = getattr(likelihood, "noise", None) == "predicted"
    require(
        type(likelihood) in (Categorical, Gaussian) and not predicted,
        f"{likelihood} has no temperature or noise scale to fit; give Categorical(), or Gaussian() "
        "with noise that is not predicted",
    )
    objective = BatchObjective(model, likelihood, 1, target=target, output=output)
    batches = batches_of(data, batch_size, 1)
    drawn = [
        (
            objective.predict(batch, samples, method=method, seed=seed).samples,
            objective.targets(batch),
        )
        for batch in batches.epoch(None)
    ]
    outputs, y = torch.cat([d for d, _ in drawn], 1), torch.cat([t for _, t in drawn])

    @torch.no_grad()
    def loss(factor: float) -> float:
        return float(mixture_nll(outputs, y, _scaled(likelihood, math.exp(factor))))

    return _scaled(likelihood, math.exp(_minimum(loss, -_WIDEST, _WIDEST)))


def _scaled(likelihood: Likelihood, factor: float) -> Likelihood:
    """Return a likelihood with its temperature or noise scale multiplied."""
    if isinstance(likelihood, Categorical):
        return Categorical(likelihood.temperature * factor)
    assert isinstance(likelihood, Gaussian)
    scaled = copy.deepcopy(likelihood)
    with torch.no_grad():
        if scaled.log_scale is None:
            scaled.scale *= factor
        else:
            scaled.log_scale.add_(math.log(factor))
    return scaled


def _minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the minimum of a function with one valley, by golden sections."""
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(_STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = function(right)
    return (low + high) / 2
