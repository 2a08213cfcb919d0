"""A forked process that is disturbed at a chosen call of a function of the package."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import leanbayes as lb

_PACKAGE = str(Path(lb.__file__).parent)


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: exit code, negative for a signal.
        error: what it wrote to the error stream.
        calls: how many functions of the package it called.
    """

    code: int
    error: str
    calls: int

    @property
    def sentence(self) -> str:
        """The one sentence of a refusal; empty if there is something else."""
        lines = [line for line in self.error.splitlines() if line.strip()]
        if self.code == 2 and "Traceback" not in self.error:
            return " ".join(lines)
        one = len(lines) == 1 and lines[0].startswith("leanbayes: ")
        return lines[0] if one else ""


def run(
    action: Callable[[], object], folder: Path, *, at: int = -1, number: int = 0, ahead: float = 0
) -> Ended:
    """Run an action in a fork, in a folder.

    Args:
        action: what to do; its exceptions end the process as those of a script do.
        folder: working folder.
        at: call of a function of the package before which a signal is sent; 0 counts calls only,
            and −1 leaves the process alone.
        number: of the signal.
        ahead: seconds by which the clock jumps at that call.
    """
    with tempfile.TemporaryDirectory() as notes:
        error, count = Path(notes, "error"), Path(notes, "count")
        if not (child := os.fork()):
            with error.open("w") as said, Path(os.devnull).open("w") as silent:
                os.dup2(said.fileno(), 2)
                os.dup2(silent.fileno(), 1)
                sys.stdout, sys.stderr = silent, said
                os._exit(_inside(action, folder, _Trigger(at, number, ahead), count, said))
        _, status = os.waitpid(child, 0)
        calls = int(count.read_text()) if count.exists() else 0
        return Ended(os.waitstatus_to_exitcode(status), error.read_text(), calls)


class _Trigger:
    """A trace function that counts calls into the package and disturbs one of them."""

    def __init__(self, at: int, number: int, ahead: float) -> None:
        self.at, self.number, self.ahead, self.calls = at, number, ahead, 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            self.calls += 1
            if self.calls == self.at:
                sys.settrace(None)
                if self.ahead:
                    now = time.time
                    time.time = lambda: now() + self.ahead
                else:
                    os.kill(os.getpid(), self.number)


def _inside(
    action: Callable[[], object], folder: Path, trigger: _Trigger, count: Path, said: Any
) -> int:
    os.setsid()
    os.chdir(folder)
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        default = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
        signal.signal(getattr(signal, name), default)
    code: object = 0
    try:
        if trigger.at >= 0:
            sys.settrace(trigger)
        action()
    except SystemExit as stop:
        code = stop.code
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        sys.settrace(None)
        traceback.print_exc(file=said)
        code = 1
    sys.settrace(None)
    count.write_text(str(trigger.calls))
    if code is not None and not isinstance(code, int):
        said.write(f"{code}\n")
        code = 1
    said.flush()
    return int(code or 0)
