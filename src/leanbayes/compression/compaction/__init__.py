"""From a masked network to a smaller one, on a traced graph with a closed table of operations."""

from leanbayes.compression.compaction.compact import (
    Compacted,
    CompactionReport,
    CompactLayer,
    StillMasked,
    compact,
)
