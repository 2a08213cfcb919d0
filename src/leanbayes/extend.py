"""Base classes, ops and decorators for your own posteriors, priors, layers and likelihoods.

Each decorator makes a class or function known by name, so that files and recipes can name it.
"""

from leanbayes import ops
from leanbayes.compression.prune import register_criterion
from leanbayes.estimators import register_estimator
from leanbayes.layers import Affine, Layer, LayerSpec, RandomMap, register_layer
from leanbayes.likelihoods import Likelihood, register_likelihood
from leanbayes.models.random_maps import map_posteriors, members, random_maps
from leanbayes.parameters.learned import Learned, Stored
from leanbayes.posteriors import Posterior, register_posterior
from leanbayes.prediction.one_pass import Uncertain, register_moments
from leanbayes.priors import Prior, register_prior
from leanbayes.training.schedules import register_schedule

__all__ = [
    "Affine",
    "Layer",
    "LayerSpec",
    "Learned",
    "Likelihood",
    "Posterior",
    "Prior",
    "RandomMap",
    "Stored",
    "Uncertain",
    "map_posteriors",
    "members",
    "ops",
    "random_maps",
    "register_criterion",
    "register_estimator",
    "register_layer",
    "register_likelihood",
    "register_moments",
    "register_posterior",
    "register_prior",
    "register_schedule",
]
