"""Ctrl-C, SIGTERM and SIGHUP, also while Lightning trains."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_ENDING = [signal.SIGTERM]
if hasattr(signal, "SIGHUP"):  # Windows has none
    _ENDING.append(signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP arrive as ``KeyboardInterrupt`` with the signal's number.

    Lightning turns Ctrl-C into an exit, ignores it from then on, and ends after SIGTERM as if all
    were well. A signal that is ignored, as SIGHUP under ``nohup``, stays so. Afterwards signals do
    what they did before.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDING)}
    received: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> NoReturn:
        received.append(number)
        raise KeyboardInterrupt(number)

    for ending in _ENDING:
        if before[ending] not in (signal.SIG_IGN, None):
            signal.signal(ending, interrupt)
    try:
        yield
    except KeyboardInterrupt as stopped:
        if received and not stopped.args:  # raised anew by code that had caught the first
            raise KeyboardInterrupt(received[0]) from stopped
        raise
    except SystemExit as stopped:
        if isinstance(stopped.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt(*stopped.__context__.args) from stopped
        if received:
            raise KeyboardInterrupt(received[0]) from stopped
        raise
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


def stopped_by(interrupt: KeyboardInterrupt) -> str:
    """Return what stopped a command, in words."""
    number = _signal(interrupt)
    return "Ctrl-C" if number == signal.SIGINT else number.name


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Return what shells report for a command that a signal ended."""
    return 128 + _signal(interrupt)


def _signal(interrupt: KeyboardInterrupt) -> signal.Signals:
    """Python itself gives none for Ctrl-C."""
    return signal.Signals(interrupt.args[0]) if interrupt.args else signal.SIGINT
