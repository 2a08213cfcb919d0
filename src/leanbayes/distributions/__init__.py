"""Values over weight matrices ``[out, in]``, in the manner of :mod:`torch.distributions`."""

from leanbayes.distributions.base import (
    Delta,
    FixedMap,
    Map,
    Moments,
    Noise,
    WeightDistribution,
)
from leanbayes.distributions.covariance import DiagonalLowRank, Factor, Triangular
from leanbayes.distributions.k_tied import KTiedNormal
from leanbayes.distributions.location_scale import LocationScale
from leanbayes.distributions.masked import Masked
from leanbayes.distributions.matrix_normal import MatrixNormal
from leanbayes.distributions.priors import ARD, Flat, GroupARD, LogUniform, ScaleMixture
from leanbayes.distributions.rank1 import Rank1Mixture

__all__ = [
    "ARD",
    "Delta",
    "DiagonalLowRank",
    "Factor",
    "FixedMap",
    "Flat",
    "GroupARD",
    "KTiedNormal",
    "LocationScale",
    "LogUniform",
    "Map",
    "Masked",
    "MatrixNormal",
    "Moments",
    "Noise",
    "Rank1Mixture",
    "ScaleMixture",
    "Triangular",
    "WeightDistribution",
]
