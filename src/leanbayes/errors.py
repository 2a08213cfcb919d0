"""Errors in one sentence: what was given, what is needed, what to do."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

__all__ = ["nearest", "require", "require_choice", "require_count", "require_positive"]


def nearest(given: str, known: Iterable[str]) -> str:
    """A closing phrase that names the nearest right word, for error messages.

    Example:
        >>> nearest("locl", ["local", "mean"])
        "; did you mean 'local'?"
    """
    names = sorted(known)
    close = difflib.get_close_matches(given, names, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; choose one of {', '.join(names)}"


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


def require_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    known = list(choices)
    require(value in known, f"{name} {value!r} is unknown{nearest(str(value), known)}")
