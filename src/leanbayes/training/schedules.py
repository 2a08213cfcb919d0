"""KL schedules and the recommended KL weight."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import nn

from leanbayes.errors import require, require_positive
from leanbayes.models.random_maps import random_maps
from leanbayes.registry import Registry

__all__ = [
    "SCHEDULES",
    "Constant",
    "Exponential",
    "LinearRamp",
    "Schedule",
    "Stepwise",
    "register_schedule",
]


class Schedule(Protocol):
    """The weight of the KL at a step (or epoch: whatever you count).

    Any function of a number will do for a loop of your own and for ``BayesianModule``. One that
    recipes name is a class, registered by :func:`register_schedule`, whose arguments are the
    recipe's ``options``; a frozen dataclass says it shortest.
    """

    def __call__(self, step: float) -> float: ...


S = TypeVar("S", bound=type[Schedule])

SCHEDULES = Registry[type[Schedule]]("schedule")
"""KL schedules by the names that recipes give them."""


def register_schedule(kind: str) -> Callable[[S], S]:
    """Make a KL schedule known to recipes, as a decorator of its class.

    Args:
        kind: its name there, in lower case.

    ``docs/extending/schedule.py`` is one to copy.

    Returns:
        The decorator.
    """
    return SCHEDULES.register(name=kind)


@register_schedule("constant")
@dataclass(frozen=True)
class Constant:
    """A constant weight.

    Args:
        weight: Weight of the KL.
    """

    weight: float = 1.0

    def __call__(self, step: float) -> float:
        return self.weight


@register_schedule("linear")
@dataclass(frozen=True)
class LinearRamp:
    """A weight that rises from ``start`` to ``weight`` in ``steps``, after ``delay``.

    Rank-1 BNNs: 200 of 250 epochs on CIFAR; sparse variational dropout: ``LinearRamp(15, delay=5)``
    epochs.

    Args:
        steps: Number of steps of the rise.
        start: First weight.
        delay: Number of steps before the rise.
        weight: Last weight.

    Raises:
        ValueError: If ``steps`` is not positive.
    """

    steps: float
    start: float = 0.0
    delay: float = 0.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        require_positive(steps=self.steps)

    def __call__(self, step: float) -> float:
        done = min(max((step - self.delay) / self.steps, 0.0), 1.0)
        return self.start + (self.weight - self.start) * done


@register_schedule("stepwise")
@dataclass(frozen=True)
class Stepwise:
    """A weight that rises by ``rate`` per step, only every ``every`` steps [k-tied, appendix E].

    Args:
        rate: Rise per step.
        every: Number of steps between rises.
        start: First weight.

    Raises:
        ValueError: If ``rate`` or ``every`` is not positive.
    """

    rate: float = 5e-5
    every: int = 100
    start: float = 0.0

    def __post_init__(self) -> None:
        require_positive(rate=self.rate, every=self.every)

    def __call__(self, step: float) -> float:
        return min(1.0, self.start + self.rate * self.every * (step // self.every))


@register_schedule("exponential")
@dataclass(frozen=True)
class Exponential:
    """A weight that rises geometrically to 1 in ``steps`` [matrix normal, sections 5.3–5.4].

    The paper does not give its formula; this is ``start^(1 − t/steps)``.

    Args:
        steps: Number of steps until 1.
        start: First weight.

    Raises:
        ValueError: If an argument is not positive.
    """

    steps: float
    start: float = 1e-3

    def __post_init__(self) -> None:
        require_positive(steps=self.steps, start=self.start)

    def __call__(self, step: float) -> float:
        return self.start ** (1 - min(step / self.steps, 1.0))


_EXAMPLES_PER_WEIGHT, _MOST = 2.0, 0.5
"""Chosen on validation data: docs/train_well.md."""


def recommended_kl_weight(model: nn.Module, data_size: float) -> float:
    """Return the KL weight that serves networks of any size: ``min(0.5, N / (2 P))``.

    With few examples per random weight the whole KL underfits; with many of them it slows down
    training and changes the result little. Validation rows chose both numbers.

    Args:
        model: a converted model.
        data_size: number ``N`` of training examples.

    Returns:
        The weight, at most 0.5; 1 is the ELBO.

    Raises:
        ValueError: If the data size is not positive.
    """
    require(data_size > 0, f"data_size must be positive, got {data_size}. Give the number of "
            "training examples")  # fmt: skip
    count = random_weights(model)
    return min(_MOST, data_size / (_EXAMPLES_PER_WEIGHT * count)) if count else 1.0


def random_weights(model: nn.Module) -> int:
    """Return the number of random weights of a model; for rank-one layers that of their factors."""
    total = 0
    for _, layer in random_maps(model):
        factors = layer.posterior.tensors("factors").values()
        total += sum(factor.numel() for factor in factors) or layer.posterior().event_shape.numel()
    return total
