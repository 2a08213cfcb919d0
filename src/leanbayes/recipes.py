"""Recipes: frozen, printable, comparable descriptions of what a layer should be made of."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["Recipe", "nearest", "require"]


@dataclass(frozen=True)
class Recipe:
    """A value that can be written to JSON and read back.

    Example:
        >>> from leanbayes import KTied
        >>> KTied(rank=3).to_dict()["kind"]
        'KTied'
    """

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON-ready values, with its class name under ``kind``."""
        values: dict[str, Any] = {"kind": type(self).__name__}
        for field in fields(self):
            value = getattr(self, field.name)
            values[field.name] = value.to_dict() if isinstance(value, Recipe) else value
        return values

    @staticmethod
    def from_dict(values: Mapping[str, Any], kinds: Mapping[str, type[Recipe]]) -> Recipe:
        """Rebuild a recipe of one of ``kinds``."""
        arguments = dict(values)
        kind = arguments.pop("kind", None)
        if kind not in kinds:
            raise ValueError(f"recipe {kind!r} is unknown{nearest(str(kind), kinds)}")
        for name, value in arguments.items():
            if isinstance(value, Mapping):
                arguments[name] = Recipe.from_dict(value, kinds)
            elif isinstance(value, list):
                arguments[name] = tuple(value)
        known = [field.name for field in fields(kinds[kind])]
        for name in arguments:
            require(name in known, f"{kind} has no argument {name!r}{nearest(name, known)}")
        try:
            return kinds[kind](**arguments)
        except TypeError as error:
            raise ValueError(f"recipe {kind} is not complete: {error}") from error


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
