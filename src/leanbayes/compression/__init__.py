"""Smaller models: pruning and compaction."""

from leanbayes.compression.compaction import Compacted, CompactionReport, compact
from leanbayes.compression.prune import density, prune
from leanbayes.compression.pruning_curve import PruningCurve, PruningPoint, pruning_curve

__all__ = [
    "Compacted",
    "CompactionReport",
    "PruningCurve",
    "PruningPoint",
    "compact",
    "density",
    "prune",
    "pruning_curve",
]
