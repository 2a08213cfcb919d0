"""What a command tells its user: results, mistakes in one sentence, and the way on after a stop."""

import functools
import os
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leanbayes.lab.console import PlainConsole

__all__ = ["console", "in_a_sentence"]


def console(**options: Any) -> "PlainConsole":
    """Where a command prints."""
    from leanbayes.lab.console import PlainConsole

    return PlainConsole(**options)


def in_a_sentence(command: Callable[..., None]) -> Callable[..., None]:
    """What a user can mend comes as one sentence instead of a traceback."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        from leanbayes.lab.console import one_line
        from leanbayes.lab.files import DiskFullError
        from leanbayes.lab.interrupts import exit_code, interruptible, stopped_by

        try:
            with interruptible():
                command(*args, **kwargs)
        except DiskFullError as error:
            sys.exit(f"leanbayes: {one_line(error)}, then {_way_on(command.__name__)}")
        except (ValueError, OSError, RuntimeError) as error:
            sys.exit(f"leanbayes: {one_line(error)}")
        except KeyboardInterrupt as stopped:
            if os.environ.get("LOCAL_RANK", "0") == "0":  # one of several processes says it
                way_on = _way_on(command.__name__)
                print(f"leanbayes: stopped by {stopped_by(stopped)}; {way_on}", file=sys.stderr)
            sys.exit(exit_code(stopped))

    return wrapped


def _way_on(command: str) -> str:
    """How to go on after a stop, as the very command where one process was started by hand."""
    if command not in ("train", "sweep", "explore"):
        return "start it again"
    resume = ["--resume"] if command == "train" and "--resume" not in sys.argv else []
    if any(variable in os.environ for variable in ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS")):
        return " ".join(["start it again", *(["with --resume"] if resume else [])])
    return f"go on with: {shlex.join(['leanbayes', *sys.argv[1:], *resume])}"
