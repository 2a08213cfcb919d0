"""Values over weight matrices ``[out, in]``, in the manner of :mod:`torch.distributions`."""

from leanbayes.distributions.base import (
    FRESH,
    Delta,
    FixedMap,
    FreshNoise,
    LocalMap,
    Map,
    Moments,
    NoiseSource,
    WeightDistribution,
)
from leanbayes.distributions.covariance import DiagonalLowRank, Factor, Triangular
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
