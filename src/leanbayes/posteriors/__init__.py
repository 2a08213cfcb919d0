"""Posteriors: each spec turns a weight into a learned distribution over its matrix.

A file here has the specs of the distributions in the file of its name in
:mod:`leanbayes.distributions`. A new posterior is a distribution and a spec under
``@register_posterior``, in one file.
"""

from leanbayes.parameters.scales import Scale
from leanbayes.posteriors.base import POSTERIORS, Posterior, register_posterior
from leanbayes.posteriors.factored import LowRank, Rank1
from leanbayes.posteriors.independent import (
    KTied,
    MeanField,
    Point,
    Pruned,
    VariationalDropout,
    ZeroMean,
)
from leanbayes.posteriors.matrix_normal import MatrixNormal

__all__ = [
    "POSTERIORS",
    "KTied",
    "LowRank",
    "MatrixNormal",
    "MeanField",
    "Point",
    "Posterior",
    "Pruned",
    "Rank1",
    "Scale",
    "VariationalDropout",
    "ZeroMean",
    "register_posterior",
]
