"""Variational auto-encoders with diagonal, matrix-normal and full posteriors [matrix normal, 5.4].

Example:
    >>> settings = VaeSettings("mn", (3, 3), epochs=200)
    >>> settings.network(784).latent.outputs
    21
"""

from leanbayes.lab.vae.folder import VaeFolder
from leanbayes.lab.vae.likelihood import (
    Importance,
    LogLikelihood,
    importance_sampled,
    log_likelihood,
)
from leanbayes.lab.vae.settings import VaeSettings, latent_shape
from leanbayes.lab.vae.train import Bound, evidence_bound, load_images, train_vae

__all__ = [
    "Bound",
    "Importance",
    "LogLikelihood",
    "VaeFolder",
    "VaeSettings",
    "evidence_bound",
    "importance_sampled",
    "latent_shape",
    "load_images",
    "log_likelihood",
    "train_vae",
]
