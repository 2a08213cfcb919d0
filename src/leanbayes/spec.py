"""Spec: a frozen, printable, comparable value that says what a part should be made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from leanbayes.errors import nearest, require

__all__ = ["Spec"]


@dataclass(frozen=True)
class Spec:
    """A value that can be written to JSON and read back.

    Example:
        >>> from leanbayes import KTied
        >>> KTied(rank=3).to_dict()["kind"]
        'KTied'
    """

    def to_dict(self) -> dict[str, Any]:
        """The spec as JSON-ready values, with its class name under ``kind``."""
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
        if kind not in kinds:
            raise ValueError(f"{kind!r} is unknown{nearest(str(kind), kinds)}")
        for name, value in arguments.items():
            if isinstance(value, Mapping):
                arguments[name] = Spec.from_dict(value, kinds)
            elif isinstance(value, list):
                arguments[name] = tuple(value)
        known = [field.name for field in fields(kinds[kind])]
        for name in arguments:
            require(name in known, f"{kind} has no argument {name!r}{nearest(name, known)}")
        try:
            return kinds[kind](**arguments)
        except TypeError as error:
            raise ValueError(f"{kind} is not complete: {error}") from error
