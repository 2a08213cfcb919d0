"""Smaller models: pruning, compaction, low-rank standard deviations."""

from leanbayes.compression.compaction import Compacted, CompactionReport, compact
from leanbayes.compression.low_rank_scales import Comparison, compare, to_k_tied, truncate
from leanbayes.compression.prune import density, prune
from leanbayes.compression.pruning_curve import PruningCurve, PruningPoint, pruning_curve

__all__ = [
    "Compacted",
    "CompactionReport",
    "Comparison",
    "PruningCurve",
    "PruningPoint",
    "compact",
    "compare",
    "density",
    "prune",
    "pruning_curve",
    "to_k_tied",
    "truncate",
]
