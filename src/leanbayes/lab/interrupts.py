"""Ctrl-C, also while Lightning trains."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["interruptible"]


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C arrive as ``KeyboardInterrupt``.

    Lightning turns it into an exit and ignores Ctrl-C from then on.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as stopped:
        if not isinstance(stopped.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, before)
        raise KeyboardInterrupt from stopped
