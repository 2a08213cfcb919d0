"""From a masked network to a smaller one, on a traced graph with a closed table of operations."""

from leanbayes.compression.compaction.compact import Compacted, compact
from leanbayes.compression.compaction.report import CompactionReport, CompactLayer, StillMasked

__all__ = ["CompactLayer", "Compacted", "CompactionReport", "StillMasked", "compact"]
