"""Registry: things of one kind by name, open to what others define."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar, overload

from leanbayes.errors import CheckoutOnlyError, choose, nearest, require

T = TypeVar("T")
U = TypeVar("U")


class Registry(Mapping[str, T]):
    """Things of one kind by name; an unknown name is answered with the nearest one.

    A second thing under one name is refused, except where the definition itself runs again, as a
    cell of a notebook does.

    Args:
        kind: kind of the registered things, for error messages.
        checkout_only: names that ``import research.extensions`` registers in a checkout.
    """

    def __init__(self, kind: str, checkout_only: Iterable[str] = ()) -> None:
        self.kind, self.checkout_only = kind, frozenset(checkout_only)
        self._things: dict[str, T] = {}

    @overload
    def register(self, thing: U, /, *, name: str | None = None) -> U: ...
    @overload
    def register(self, /, *, name: str) -> Callable[[U], U]: ...
    def register(self, thing: Any = None, /, *, name: str | None = None) -> Any:
        """Add a thing and return it; with ``name=`` alone, a decorator that does.

        Args:
            thing: a class, a function or any other value.
            name: name; its ``__name__`` if not given.
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

    def make(self, name: str, /, **arguments: Any) -> Any:
        """Call the class or function of this name; what is wrong is said in one sentence."""
        thing: Any = self[name]
        known = argument_names(thing)
        for argument in arguments:
            hint = nearest(argument, known) if known else "; it has none"
            require(argument in known, f"{name} has no argument {argument!r}{hint}")
        try:
            return thing(**arguments)
        except TypeError as error:
            raise ValueError(f"{self.kind} {name!r} cannot be made: {error}") from error

    def name_of(self, value: object) -> str:
        """Return the name of the class that a value is an instance of."""
        for name, thing in self.items():
            if type(value) is thing:
                return name
        raise ValueError(
            f"{type(value).__name__} is not a registered {self.kind}, and a file names only those; "
            f"decorate its class with lb.extend.register_{self.kind}"
        )

    def is_missing(self, name: str) -> bool:
        """Return whether a name is that of an extension which was not imported."""
        return name in self.checkout_only and name not in self._things

    def require_installed(self, name: str) -> None:
        """Raise if a name is that of an extension which was not imported."""
        if self.is_missing(name):
            raise CheckoutOnlyError(self.kind, name)

    def __getitem__(self, name: str) -> T:
        self.require_installed(name)
        return choose(self.kind, name, self._things)

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind!r}: {', '.join(self._things)})"


def argument_names(made: Callable[..., Any]) -> list[str]:
    """Return the arguments that a class or function takes."""
    parameters = inspect.signature(made).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _defined(thing: object) -> object:
    """Where a class or function was defined; any other value stands for itself."""
    name = getattr(thing, "__qualname__", None)
    return thing if name is None else (getattr(thing, "__module__", None), name)
