"""How a network is trained: rates of Adam and the weight of the KL over the steps."""

import math
from dataclasses import dataclass

from leanbayes.training.schedules import LinearRamp


@dataclass(frozen=True)
class Schedule:
    """How a network is trained by Adam.

    Args:
        lr: the first rate.
        scales: by what it is multiplied for standard deviations.
        rise: the share of steps in which the weight of the KL rises from zero.
        falls: whether the rate falls along a cosine to zero.
    """

    lr: float
    scales: float = 1.0
    rise: float = 0.0
    falls: bool = False

    def rate(self, done: float) -> float:
        """Return what rates are multiplied with when a share of the steps is done.

        Example:
            >>> round(Schedule(0.1, falls=True).rate(0.5), 12), Schedule(0.1).rate(0.5)
            (0.5, 1.0)
        """
        return 0.5 + 0.5 * math.cos(math.pi * done) if self.falls else 1.0

    def weight(self, done: float) -> float:
        """Return the weight of the KL when a share of the steps is done.

        Example:
            >>> Schedule(0.1, rise=0.5).weight(0.25), Schedule(0.1).weight(0.0)
            (0.5, 1.0)
        """
        return LinearRamp(self.rise)(done) if self.rise else 1.0
