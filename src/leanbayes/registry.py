"""Registry: things of one kind by name, open to what others define."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar, overload

from leanbayes.errors import choose, require

__all__ = ["Registry"]

T = TypeVar("T")
U = TypeVar("U")


class Registry(Mapping[str, T]):
    """Things of one kind by name; an unknown name is answered with the nearest one.

    A second thing under one name is refused, except where the definition itself runs again, as a
    cell of a notebook does.

    Args:
        kind: what the things are, for error messages.

    Example:
        >>> shapes = Registry[type]("shape")
        >>> @shapes.register
        ... class Circle: ...
        >>> shapes["Cirle"]
        Traceback (most recent call last):
        leanbayes.errors.UnknownNameError: shape 'Cirle' is unknown; did you mean 'Circle'?
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}

    @overload
    def register(self, thing: U, /, *, name: str | None = None) -> U: ...
    @overload
    def register(self, /, *, name: str) -> Callable[[U], U]: ...
    def register(self, thing: Any = None, /, *, name: str | None = None) -> Any:
        """Add a thing and return it; with ``name=`` alone, a decorator that does.

        Args:
            thing: a class, a function or any other value.
            name: what to call it; its ``__name__`` if not given.
        """
        if thing is None:
            return partial(self.register, name=name)
        name = thing.__name__ if name is None else name
        known = self._things.get(name, thing)
        require(
            known is thing or _defined(known) == _defined(thing),
            f"there is a {self.kind} {name!r} already; give yours another name",
        )
        self._things[name] = thing
        return thing

    def unregister(self, name: str) -> None:
        """Forget a thing."""
        self[name]
        del self._things[name]

    def __getitem__(self, name: str) -> T:
        return choose(self.kind, name, self._things)

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind!r}: {', '.join(self._things)})"


def _defined(thing: object) -> object:
    """Where a class or function was defined; any other value stands for itself."""
    name = getattr(thing, "__qualname__", None)
    return thing if name is None else (getattr(thing, "__module__", None), name)
