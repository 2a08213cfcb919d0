"""Kinds: classes by the name that files give them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from leanbayes.errors import nearest, require

__all__ = ["Kinds", "argument_names"]

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])


class Kinds(dict[str, Callable[..., T]]):
    """Classes by name, open to everybody's.

    Args:
        what: what they are, for messages.

    Example:
        >>> shapes = Kinds("shape")
        >>> @shapes.register("square")
        ... class Square:
        ...     def __init__(self, side: float = 1.0) -> None:
        ...         self.side = side
        >>> shapes.make("square", side=2.0).side
        2.0
        >>> shapes.make("sqare")
        Traceback (most recent call last):
        ValueError: shape 'sqare' is unknown; did you mean 'square'?
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def register(self, kind: str) -> Callable[[C], C]:
        """A decorator that makes a class known under a name; a notebook may define it again."""
        require(kind.isidentifier() and kind.islower(), f"{kind!r} is no lower-case name")

        def add(made: C) -> C:
            known = self.get(kind, made)
            require(
                _full_name(known) == _full_name(made),
                f"{self.what} {kind!r} is {_full_name(known)} already; choose another name",
            )
            self[kind] = made
            return made

        return add

    def kind_of(self, value: T) -> str:
        """The name under which the class of a value is registered."""
        for kind, made in self.items():
            if type(value) is made:
                return kind
        raise ValueError(
            f"{type(value).__name__} is no registered {self.what}, and a file names only those; "
            f'decorate its class with @lb.register_{self.what}("a_name")'
        )

    def make(self, kind: str, /, **arguments: Any) -> T:
        """A value of this kind; what is wrong is said in one sentence."""
        require(kind in self, f"{self.what} {kind!r} is unknown{nearest(str(kind), self)}")
        known = argument_names(self[kind])
        for name in arguments:
            require(name in known, f"{kind} has no argument {name!r}{_nearest(name, known)}")
        try:
            return self[kind](**arguments)
        except TypeError as error:
            raise ValueError(f"{self.what} {kind!r} cannot be made: {error}") from error


def argument_names(made: Callable[..., Any]) -> list[str]:
    """The arguments that a class takes.

    Example:
        >>> argument_names(Kinds)
        ['what']
    """
    parameters = inspect.signature(made).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _full_name(made: Callable[..., Any]) -> str:
    return f"{made.__module__}.{made.__qualname__}"


def _nearest(name: str, known: Iterable[str]) -> str:
    return nearest(name, known) if known else "; it has none"
