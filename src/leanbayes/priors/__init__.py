"""Priors: specs of the distributions that posteriors are compared with.

A new prior is one spec under ``@register_prior`` and, for a closed form, one
:func:`~leanbayes.distributions.kl.cross_entropy`.
"""

from leanbayes.priors.base import PRIORS, Prior, register_prior
from leanbayes.priors.normal import Centered, He, Hierarchical, Normal
from leanbayes.priors.relevance import ARD, GroupARD, LogUniform
from leanbayes.priors.shapes import (
    Cauchy,
    Flat,
    HalfCauchy,
    Laplace,
    LogNormal,
    ScaleMixture,
    StudentT,
)

__all__ = [
    "ARD",
    "PRIORS",
    "Cauchy",
    "Centered",
    "Flat",
    "GroupARD",
    "HalfCauchy",
    "He",
    "Hierarchical",
    "Laplace",
    "LogNormal",
    "LogUniform",
    "Normal",
    "Prior",
    "ScaleMixture",
    "StudentT",
    "register_prior",
]
