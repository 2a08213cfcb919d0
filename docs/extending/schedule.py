"""A KL schedule: the weight of the KL as training goes on."""

from dataclasses import dataclass

import leanbayes as lb


@lb.extend.register_schedule("sawtooth")
@dataclass(frozen=True)
class Sawtooth:
    """Rises from 0 to 1 again and again, once every ``period``."""

    period: float

    def __call__(self, step: float) -> float:
        return (step % self.period) / self.period
