"""Variational auto-encoders with diagonal, matrix-normal and full posteriors [matrix normal, 5.4].

``train_vae`` trains the paper's network in a folder. ``LatentPosterior``, ``standard_kl``,
``scored_draws`` and ``importance_sampled`` work with encoders and decoders of your own;
``examples/autoencode_digits.py`` shows how.

Example:
    >>> settings = VaeSettings("mn", (3, 3), epochs=200)
    >>> settings.network(784).latent.outputs
    21
"""

from leanbayes.lab.architectures.vae import LatentPosterior, Vae, scored_draws, standard_kl
from leanbayes.lab.vae.folder import VaeFolder
from leanbayes.lab.vae.likelihood import (
    Importance,
    LogLikelihood,
    importance_sampled,
    log_likelihood,
)
from leanbayes.lab.vae.pictures import latent_walk, prior_samples, reconstructions, sheet
from leanbayes.lab.vae.settings import VaeSettings, latent_shape
from leanbayes.lab.vae.train import Bound, evidence_bound, load_images, train_vae

__all__ = [
    "Bound",
    "Importance",
    "LatentPosterior",
    "LogLikelihood",
    "Vae",
    "VaeFolder",
    "VaeSettings",
    "evidence_bound",
    "importance_sampled",
    "latent_shape",
    "latent_walk",
    "load_images",
    "log_likelihood",
    "prior_samples",
    "reconstructions",
    "scored_draws",
    "sheet",
    "standard_kl",
    "train_vae",
]
