"""Posteriors: each spec turns a weight into a learned distribution over its matrix.

A new posterior is one file: a distribution, and a spec under ``@register_posterior``.
"""

from leanbayes.posteriors.base import POSTERIORS, Posterior, register_posterior
from leanbayes.posteriors.dropout import Dropout
from leanbayes.posteriors.k_tied import KTied
from leanbayes.posteriors.matrix_normal import MatrixNormal
from leanbayes.posteriors.mean_field import MeanField, Point
from leanbayes.posteriors.rank1 import Rank1
from leanbayes.posteriors.zero_mean import ZeroMean

__all__ = [
    "POSTERIORS",
    "Dropout",
    "KTied",
    "MatrixNormal",
    "MeanField",
    "Point",
    "Posterior",
    "Rank1",
    "ZeroMean",
    "register_posterior",
]
