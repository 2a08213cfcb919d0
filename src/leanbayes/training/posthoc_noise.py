"""Uncertainty without training: the widest noise on all weights that keeps the validation loss.

The idea is that of training-free Bayesianization (TFB, 2025), there for the low-rank adapters of
language models.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes.conversion.convert import convert
from leanbayes.errors import require, require_count, require_positive
from leanbayes.estimators import mean
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.models.noise_switches import using
from leanbayes.models.random_maps import random_maps
from leanbayes.posteriors import MeanField
from leanbayes.prediction.predict import predict
from leanbayes.priors import Flat

Data = tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]
_NARROWEST, _FIRST, _WIDEST = 1e-6, 1e-2, 1e3
"""The standard deviations that are tried, relative to the root mean square of the weights."""
_STEPS = 7
"""How often the last interval, of a factor of two, is halved."""


class Widened(NamedTuple):
    """A network with noise on its weights, and what that costs.

    Attributes:
        model: the converted network, whose means are the given weights.
        scale: the standard deviation of every weight.
        loss: the validation loss of single draws, averaged.
        before: that of the given network.
    """

    model: nn.Module
    scale: float
    loss: float
    before: float

    def __repr__(self) -> str:
        kind = type(self.model).__name__
        loss = f"validation loss {self.before:.4g} → {self.loss:.4g}"
        return f"{kind} with a standard deviation of {self.scale:.3g}: {loss}"


def widen(
    model: nn.Module,
    data: Data,
    tolerance: float = 0.01,
    *,
    likelihood: Likelihood | None = None,
    samples: int = 30,
    include: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    seed: int = 0,
) -> Widened:
    """Give a trained network the widest independent noise that its validation loss allows.

    All weights get one standard deviation: the largest for which the loss of a draw rises by no
    more than the tolerance, on average. The result depends on the seed alone: draws share noise.

    Args:
        model: the trained plain network, which stays as it is.
        data: validation inputs and targets, or batches of them.
        tolerance: how much the loss may rise, in nats an example.
        likelihood: what the outputs mean; :class:`~leanbayes.likelihoods.Categorical` if not given.
        samples: how many draws the loss is averaged over; with few, other draws may do worse.
        include: names or patterns of the layers that get noise.
        exclude: those that do not.
        seed: of the noise.

    Example:
        >>> net, x, y = nn.Linear(3, 2), torch.randn(50, 3), torch.randint(2, (50,))
        >>> found = widen(net, (x, y), tolerance=0.1)
        >>> found.before < found.loss <= found.before + 0.1
        True
    """
    require_positive(tolerance=tolerance)
    require_count("samples", samples, 1)
    batches, meaning = _batches(data), likelihood or Categorical()
    _require_plain(model)
    noisy = convert(model, MeanField(), Flat(), include=include, exclude=exclude)
    with using(noisy, mean):
        before = _loss(noisy, batches, meaning, 1, seed)

    def loss(scale: float) -> float:
        _set_scales(noisy, scale)
        return _loss(noisy, batches, meaning, samples, seed)

    scale = _largest(loss, before + tolerance, _size(noisy))
    return Widened(noisy, scale, loss(scale), before)


def _require_plain(model: nn.Module) -> None:
    require(
        not any(True for _ in random_maps(model)),
        "the model has random weights already; give the plain network, lb.deterministic(model)",
    )


def _batches(data: Data) -> list[tuple[Tensor, Tensor]]:
    """Pairs of inputs and targets, of which there may be one."""
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(t, Tensor) for t in data):
        batches: list[Any] = [data]
    else:
        batches = list(data)
    require(
        sum(len(y) for _, y in batches) > 0,
        "there are no validation examples; give inputs and targets, or batches of them",
    )
    return batches


def _set_scales(model: nn.Module, scale: float) -> None:
    for _, layer in random_maps(model):
        layer.posterior.assign(scale=torch.full_like(layer.posterior.value("scale"), scale))


def _loss(
    model: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    likelihood: Likelihood,
    samples: int,
    seed: int,
) -> float:
    """The loss of a draw, averaged over draws and examples."""
    total, count = 0.0, 0
    with torch.no_grad():
        for number, (x, y) in enumerate(batches):
            drawn = predict(model, x, samples=samples, seed=(seed + number) % 2**64)
            total += float(likelihood.nll(drawn.samples, y)) * len(y)
            count += len(y)
    return total / count


def _size(model: nn.Module) -> float:
    """The root mean square of the weights that get noise."""
    weights = torch.cat(
        [layer.posterior().mean.detach().flatten() for _, layer in random_maps(model)]
    )
    return float(weights.double().square().mean().sqrt()) or 1.0


def _largest(loss: Callable[[float], float], limit: float, size: float) -> float:
    """The largest scale below the first at which the loss passes a limit."""
    low = _FIRST * size
    while not loss(low) <= limit:  # also where it is no number
        low /= 4
        require(
            low > _NARROWEST * size,
            f"the loss passes {limit:.4g} with almost no noise; give more tolerance, or look "
            "whether the network gives numbers that are not finite",
        )
    while loss(2 * low) <= limit:
        low *= 2
        require(
            low < _WIDEST * size,
            "the loss does not rise with noise on the weights, so there is no largest one; look "
            "whether the outputs depend on the layers that were chosen",
        )
    high = 2 * low
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if loss(middle) <= limit else (low, middle)
    return low
