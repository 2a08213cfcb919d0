"""Errors in one sentence: what was given, what is needed, what to do."""

import difflib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
_SEEDS = 2**64
_LONGEST_REASON = 300


class UnknownNameError(ValueError, KeyError):
    """A name that nothing has: a ``KeyError`` for mappings, with the text of a ``ValueError``."""

    def __str__(self) -> str:
        return str(self.args[0])


class CheckoutOnlyError(UnknownNameError):
    """A name of the papers' studies, which are in a checkout and not in the installed package."""

    def __init__(self, kind: str, name: str) -> None:
        self.missing = f"{kind} {name!r} needs a checkout of leanbayes"
        super().__init__(f"{self.missing}; there, import research.extensions")


class LoadError(ValueError):
    """A file that cannot be loaded: one sentence that names it and says what to do."""


class NonFiniteLossError(RuntimeError):
    """The loss became NaN or infinite; the message names the first layer where it shows.

    Args:
        reason: place and time of the problem.
        remedy: the remedy.
    """

    def __init__(
        self,
        reason: str,
        remedy: str = "Lower the learning rate, clip gradients or start with smaller scales",
    ) -> None:
        super().__init__(f"{reason}. {remedy}")
        self.reason = reason


class UntiledWarning(UserWarning):
    """A mixture is trained on a batch that was not repeated for its members."""


def nearest(given: str, known: Iterable[str]) -> str:
    """Return a closing phrase that names the nearest right word, for error messages."""
    names = sorted(known)
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(given.lower(), by_lower, 1)
    if close:
        return f"; did you mean {by_lower[close[0]]!r}?"
    return f"; choose one of {', '.join(names)}"


def unknown(kind: str, given: object, known: Iterable[str]) -> UnknownNameError:
    """Return an error for a name that nothing of a kind has."""
    return UnknownNameError(f"{kind} {given!r} is unknown{nearest(str(given), known)}")


def choose(kind: str, given: str, table: Mapping[str, T]) -> T:
    """Return the entry of a table, or an error with the nearest name."""
    if given not in table:
        raise unknown(kind, given, table)
    return table[given]


def first_line(error: BaseException) -> str:
    """Return the message of an exception in one short line, or else its type."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"


@contextmanager
def explained_as(
    sentence: str,
    *caught: type[Exception],
    when: Callable[[Exception], bool] = lambda _: True,
    into: type[Exception] = ValueError,
) -> Iterator[None]:
    """Replace an exception by one sentence for the user.

    Args:
        sentence: the new message; the first line of the old one stands for ``{reason}``.
        caught: the exceptions to replace.
        when: condition that an exception must meet, too.
        into: the new exception.
    """
    try:
        yield
    except caught as error:
        if not when(error):
            raise
        raise into(sentence.replace("{reason}", first_line(error))) from error


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless the condition holds."""
    if not condition:
        raise ValueError(message)


def require_positive(**values: float) -> None:
    """Raise unless every value is a positive finite number."""
    for name, value in values.items():
        require(value > 0 and math.isfinite(value), f"{name} is {value}; it must be positive")


def require_count(name: str, value: int, least: int) -> None:
    """Raise unless ``value`` is a whole number and at least ``least``."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole, f"{name} is {value!r}; it must be a whole number")
    require(value >= least, f"{name} is {value}; it must be at least {least}")


def require_seed(seed: int) -> int:
    """Return the seed, if every generator takes it: a whole number from 0 to 2⁶⁴ − 1."""
    try:
        whole = operator.index(seed)
    except TypeError:
        whole = -1
    if not 0 <= whole < _SEEDS:
        raise ValueError(f"seed is {seed!r}; it must be a whole number from 0 to 2**64 - 1")
    return whole


def require_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    known = list(choices)
    if value not in known:
        raise unknown(name, value, known)
