"""Messages of a command: errors in one sentence, how to resume, and the next command."""

import functools
import os
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leanbayes_cli.names import check_names, printable

if TYPE_CHECKING:
    from leanbayes.lab.console import PlainConsole

_RESEARCH = ["python", "-m", "research.lab"]
"""The same commands in a checkout, with the extensions of the papers."""


def console(**options: Any) -> "PlainConsole":
    """Make the console that a command prints to."""
    from leanbayes.lab.console import PlainConsole

    return PlainConsole(**options)


def say_next(*words: object) -> None:
    """Print the command that usually follows."""
    print(f"Next: {printable(shlex.join(['leanbayes', *map(str, words)]))}")


def in_a_sentence(command: Callable[..., None]) -> Callable[..., None]:
    """Print one sentence instead of a traceback for errors that a user can correct."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        check_names(kwargs)
        from leanbayes.lab.console import one_line
        from leanbayes.lab.interrupts import exit_code, interruptible, stopped_by
        from leanbayes.saving.files import DiskFullError

        try:
            with interruptible():
                command(*args, **kwargs)
        except DiskFullError as error:
            sys.exit(f"leanbayes: {one_line(error)}, then {_way_on(command.__name__)}")
        except (ValueError, OSError, RuntimeError) as error:
            sys.exit(f"leanbayes: {_in_a_checkout(error) or one_line(error)}")
        except KeyboardInterrupt as stopped:
            if os.environ.get("LOCAL_RANK", "0") == "0":  # one of several processes says it
                way_on = _way_on(command.__name__)
                print(f"leanbayes: stopped by {stopped_by(stopped)}; {way_on}", file=sys.stderr)
            sys.exit(exit_code(stopped))

    return wrapped


def _in_a_checkout(error: Exception) -> str:
    """Return how to run in a checkout what needs one; empty if it is another error."""
    missing = getattr(error, "missing", "")  # of a CheckoutOnlyError
    return missing and f"{missing}; there, run: {shlex.join([*_RESEARCH, *sys.argv[1:]])}"


def _way_on(command: str) -> str:
    """How to go on after a stop, as the very command where one process was started by hand."""
    if command not in ("train", "sweep", "explore"):
        return "start it again"
    resume = ["--resume"] if command == "train" and "--resume" not in sys.argv else []
    if any(variable in os.environ for variable in ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS")):
        return " ".join(["start it again", *(["with --resume"] if resume else [])])
    return f"go on with: {shlex.join([*_program(), *sys.argv[1:], *resume])}"


def _program() -> list[str]:
    """Return how this process was started: as ``leanbayes``, or as a module of a checkout."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = "" if spec is None else spec.name.removesuffix(".__main__")
    in_checkout = module.partition(".")[0] == _RESEARCH[-1].partition(".")[0]
    return [*_RESEARCH[:-1], module] if in_checkout else ["leanbayes"]
