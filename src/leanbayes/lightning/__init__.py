"""A door to Lightning: the ELBO as a LightningModule, and callbacks that work without the lab."""

from leanbayes.errors import NonFiniteLossError
from leanbayes.lightning.callbacks import (
    PriorUpdates,
    RecordSNR,
    StopOnNonFinite,
    first_non_finite,
)
from leanbayes.lightning.module import BayesianModule

__all__ = [
    "BayesianModule",
    "NonFiniteLossError",
    "PriorUpdates",
    "RecordSNR",
    "StopOnNonFinite",
    "first_non_finite",
]
