"""Interface to Lightning: the ELBO as a LightningModule, and callbacks."""

from leanbayes.errors import NonFiniteLossError
from leanbayes.lightning.callbacks import PriorUpdates, StopOnNonFinite, first_non_finite
from leanbayes.lightning.module import BayesianModule

__all__ = [
    "BayesianModule",
    "NonFiniteLossError",
    "PriorUpdates",
    "StopOnNonFinite",
    "first_non_finite",
]
