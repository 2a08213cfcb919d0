"""KL schedules: the weight of the KL as training goes on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from leanbayes.errors import require_positive
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
    """
    return SCHEDULES.register(name=kind)


@register_schedule("constant")
@dataclass(frozen=True)
class Constant:
    """Always the same weight."""

    weight: float = 1.0

    def __call__(self, step: float) -> float:
        return self.weight


@register_schedule("linear")
@dataclass(frozen=True)
class LinearRamp:
    """Rises from ``start`` to 1 in ``steps``, after ``delay``.

    Rank-1 BNNs: 200 of 250 epochs on CIFAR; sparse variational dropout: ``LinearRamp(15, delay=5)``
    epochs.

    Example:
        >>> [LinearRamp(10)(t) for t in (0, 5, 20)]
        [0.0, 0.5, 1.0]
    """

    steps: float
    start: float = 0.0
    delay: float = 0.0

    def __post_init__(self) -> None:
        require_positive(steps=self.steps)

    def __call__(self, step: float) -> float:
        done = min(max((step - self.delay) / self.steps, 0.0), 1.0)
        return self.start + (1 - self.start) * done


@register_schedule("stepwise")
@dataclass(frozen=True)
class Stepwise:
    """Rises by ``rate`` a step, but only every ``every`` steps [k-tied, appendix E].

    Example:
        >>> [round(Stepwise(rate=5e-5, every=100)(t), 4) for t in (99, 100, 1050, 20000)]
        [0.0, 0.005, 0.05, 1.0]
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
    """Rises geometrically from ``start`` to 1 in ``steps`` [matrix normal, sections 5.3–5.4].

    The paper does not give its formula; this is ``start^(1 − t/steps)``.

    Example:
        >>> [round(Exponential(300, start=0.01)(t), 4) for t in (0, 150, 300, 400)]
        [0.01, 0.1, 1.0, 1.0]
    """

    steps: float
    start: float = 1e-3

    def __post_init__(self) -> None:
        require_positive(steps=self.steps, start=self.start)

    def __call__(self, step: float) -> float:
        return self.start ** (1 - min(step / self.steps, 1.0))
