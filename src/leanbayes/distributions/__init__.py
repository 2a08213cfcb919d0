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
from leanbayes.distributions.factored import LowRankProduct, Rank1Mixture
from leanbayes.distributions.independent import KTiedNormal, LocationScale, Masked
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
