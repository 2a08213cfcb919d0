"""Smaller models: pruning and compaction."""

from leanbayes.compression.compaction import Compacted, CompactionReport, compact
from leanbayes.compression.prune import density, prune

__all__ = [
    "Compacted",
    "CompactionReport",
    "compact",
    "density",
    "prune",
]
