"""Values over weight matrices ``[out, in]``, in the manner of :mod:`torch.distributions`."""

from leanbayes.distributions.base import (
    Delta,
    FixedMap,
    LocalMap,
    Map,
    Moments,
    WeightDistribution,
    rounded,
    with_op,
)
from leanbayes.distributions.covariance import DiagonalLowRank, Factor, PackedTriangular, Triangular
from leanbayes.distributions.k_tied import KTiedNormal
from leanbayes.distributions.location_scale import LocationScale
from leanbayes.distributions.low_rank import LowRankProduct
from leanbayes.distributions.masked import Masked
from leanbayes.distributions.matrix_normal import KroneckerNormal
from leanbayes.distributions.priors import (
    CenteredNormal,
    FlatDensity,
    GroupRelevanceNormal,
    HierarchicalNormal,
    LogUniformDensity,
    NormalMixture,
    RelevanceNormal,
)
from leanbayes.distributions.rank1 import Rank1Mixture

__all__ = [
    "CenteredNormal",
    "Delta",
    "DiagonalLowRank",
    "Factor",
    "FixedMap",
    "FlatDensity",
    "GroupRelevanceNormal",
    "HierarchicalNormal",
    "KTiedNormal",
    "KroneckerNormal",
    "LocalMap",
    "LocationScale",
    "LogUniformDensity",
    "LowRankProduct",
    "Map",
    "Masked",
    "Moments",
    "NormalMixture",
    "PackedTriangular",
    "Rank1Mixture",
    "RelevanceNormal",
    "Triangular",
    "WeightDistribution",
    "rounded",
    "with_op",
]
