"""A quicker start: what is imported is no garbage, so nobody needs to look for any meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_collector"]


@contextmanager
def without_collector() -> Iterator[None]:
    """Let Python's garbage collector rest for the length of a block, if it was running.

    One search through all objects of torch is a good part of what the import takes.
    """
    was_running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_running:
            gc.enable()
