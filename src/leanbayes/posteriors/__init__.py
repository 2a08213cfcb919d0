"""Posteriors: each spec turns a weight into a learned distribution over its matrix.

A file here has the specs of the distributions in the file of its name in
:mod:`leanbayes.distributions`. A new posterior is a distribution and a spec under
``@register_posterior``, in one file.
"""

from leanbayes.parameters.scales import Scale
from leanbayes.posteriors.base import POSTERIORS, Posterior, register_posterior
from leanbayes.posteriors.k_tied import KTied
from leanbayes.posteriors.location_scale import MeanField, Point, VariationalDropout, ZeroMean
from leanbayes.posteriors.low_rank import LowRank
from leanbayes.posteriors.masked import Pruned
from leanbayes.posteriors.matrix_normal import MatrixNormal
from leanbayes.posteriors.rank1 import Rank1

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
