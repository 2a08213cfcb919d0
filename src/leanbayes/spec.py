"""Spec: a frozen, printable, comparable value that says what a part should be made of."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from leanbayes.display import short_repr
from leanbayes.errors import nearest, require

RENAMED = {"Dropout": "VariationalDropout"}
"""Kinds that files and recipes of earlier versions name otherwise."""

_EXACT = 2**53
"""Up to here a float holds every whole number."""


@dataclass(frozen=True)
class Spec:
    """A value that can be written to JSON and read back."""

    if_absent: ClassVar[Mapping[str, Any]] = {}
    """What :meth:`from_dict` takes for arguments that specs of earlier versions did not have."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in cls.__dict__:  # the dataclass decorator leaves what is there
            cls.__repr__ = short_repr  # type: ignore[method-assign]

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON-ready values, with its class name under ``kind``."""
        values: dict[str, Any] = {"kind": type(self).__name__}
        for field in fields(self):
            value = getattr(self, field.name)
            values[field.name] = value.to_dict() if isinstance(value, Spec) else value
        return values

    @staticmethod
    def from_dict(values: Mapping[str, Any], kinds: Mapping[str, type[Spec]]) -> Spec:
        """Rebuild a spec of one of ``kinds``."""
        arguments = dict(values)
        kind = arguments.pop("kind", None)
        kind = RENAMED.get(kind, kind) if isinstance(kind, str) else kind
        if not isinstance(kind, str) or kind not in kinds:
            raise ValueError(f"{reprlib.repr(kind)} is unknown{nearest(str(kind), kinds)}")
        for name, value in arguments.items():
            if isinstance(value, Mapping):
                arguments[name] = Spec.from_dict(value, kinds)
            elif isinstance(value, list):
                arguments[name] = tuple(value)
        made: Any = kinds[kind]
        known = [field.name for field in fields(made)]
        hints = _hints(made)
        for name, value in arguments.items():
            require(name in known, f"{kind} has no argument {name!r}{nearest(name, known)}")
            require(
                name not in hints or _fits(value, hints[name]),
                f"{name} of {kind} is {reprlib.repr(value)}; it must be {_words(hints.get(name))}",
            )
        try:
            spec: Spec = made(**{**made.if_absent, **arguments})
        except TypeError as error:
            raise ValueError(f"{kind} is not complete: {error}") from error
        return spec


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a spec's fields; none where they cannot be known, as in a local class."""
    try:
        hints = get_type_hints(kind)
    except NameError:
        return {}
    return {field.name: hints[field.name] for field in fields(kind)}


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value read from JSON is of a type; types that JSON has not are let pass."""
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in options)
    if origin is Literal:
        return type(value) in map(type, options)  # the spec itself names the nearest right one
    if origin is tuple:
        repeated = options[-1:] == (...,)
        kinds = options[:1] * len(value) if repeated and isinstance(value, tuple) else options
        return (
            isinstance(value, tuple) and len(value) == len(kinds) and all(map(_fits, value, kinds))
        )
    if hint in (int, float):
        whole = isinstance(value, int) and not isinstance(value, bool)
        return hint is int or abs(value) <= _EXACT if whole else type(value) is float is hint
    return not isinstance(hint, type) or isinstance(value, hint)


def _words(hint: Any) -> str:
    """Return a type in words."""
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    words |= {NoneType: "null"}
    if get_origin(hint) in (Union, UnionType, Literal):
        options = get_args(hint)
        names = [repr(o) if get_origin(hint) is Literal else _words(o) for o in options]
        return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return words.get(hint, getattr(hint, "__name__", str(hint)))
