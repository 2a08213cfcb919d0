"""Interface to Lightning: the ELBO as a LightningModule, and callbacks."""

from leanbayes.errors import NonFiniteLossError
from leanbayes.lightning.module import (
    BayesianModule,
    PriorUpdates,
    StopOnNonFinite,
)

__all__ = [
    "BayesianModule",
    "NonFiniteLossError",
    "PriorUpdates",
    "StopOnNonFinite",
]
