"""Memory that is freed stays with the process, where the C library can be told so."""

from __future__ import annotations

import ctypes
import os
from functools import cache

__all__ = ["keep_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""The names of settings in glibc's ``malloc.h``."""
_KEPT, _LARGEST_KEPT = 2**28, 2**25
"""How much freed memory is kept at most, and in how large blocks; glibc allows no larger ones."""
_SET_BY_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def keep_memory() -> bool:
    """Let glibc keep up to 256 MB of freed memory; returns whether it does by this call.

    Slices of a prediction ask for the same blocks again and again. Blocks that went back to the
    system come anew, page by page, which takes time. Environment variables that say otherwise are
    respected, and other C libraries are left as they are.
    """
    if any(name in os.environ for name in _SET_BY_USERS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or none under this name
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_TRIM_THRESHOLD, _KEPT))
