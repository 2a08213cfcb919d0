"""Likelihoods: what a network's outputs say about the data.

A new likelihood is one class with one method, ``distribution``.
"""

from leanbayes.likelihoods.base import LIKELIHOODS, Likelihood, register_likelihood
from leanbayes.likelihoods.classes import Bernoulli, Categorical
from leanbayes.likelihoods.numbers import Gaussian, NegativeBinomial, Poisson, StudentTNoise

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Likelihood",
    "NegativeBinomial",
    "Poisson",
    "StudentTNoise",
    "register_likelihood",
]
