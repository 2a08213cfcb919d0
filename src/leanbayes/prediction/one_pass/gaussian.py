"""Activations with a mean and a variance, and the table of functions that accept them.

The table is closed: a function without a rule raises :class:`NoRuleError`, and the prediction is
made from samples instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.errors import require


class NoRuleError(TypeError):
    """A function has no rule for means and variances: the reason, without a full stop."""


def need(condition: bool, why: str) -> None:
    """Raise :class:`NoRuleError` unless a condition holds."""
    if not condition:
        raise NoRuleError(why)


Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)

RULES: dict[Callable[..., Any], Rule] = {}
"""The rule of every function of torch that a :class:`Uncertain` may meet."""


def register_moments(*functions: Callable[..., Any]) -> Callable[[R], R]:
    """Register how a function acts on a mean and a variance, as a decorator of the rule.

    The rule takes the arguments of the function. Those that are random are a :class:`Uncertain`;
    all others are what the network passes. A later registration of the same function wins.

    Args:
        *functions: Functions of torch, methods of ``torch.Tensor`` included.

    Returns:
        The decorator.

    Raises:
        ValueError: If no function is given, or something that cannot be called.

    ``docs/extending/moments.py`` is one to copy.
    """
    require(
        len(functions) > 0 and all(map(callable, functions)),
        "functions must be functions of torch, such as torch.erf. Give the function that the "
        "network calls",
    )

    def register(rule: R) -> R:
        RULES.update(dict.fromkeys(functions, rule))
        return rule

    return register


def named(names: str) -> Iterator[Callable[..., Any]]:
    """Return Torch's functions and methods of these names."""
    for name in names.split():
        for owner in (torch, Tensor, F):
            function = getattr(owner, name, None)
            if callable(function):
                yield function


_FACTS = {
    *("shape", "ndim", "dtype", "device", "layout", "is_nested", "is_cpu", "is_cuda", "is_meta"),
    *("requires_grad", "is_sparse", "is_mkldnn", "is_quantized"),
}
_QUESTIONS = {"size", "dim", "numel", "is_floating_point", "is_complex", "is_contiguous", "stride"}
_MAKERS = {"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"}


class Uncertain:
    """Activations ``[…]`` with a mean and a variance each, as if they were independent.

    It takes the place of a tensor in a forward pass: functions of torch look up their rule in
    :data:`RULES`. It is not a ``torch.Tensor``, and fields are named so that methods such as
    ``x.mean(1)`` stay methods.

    Attributes:
        loc: The means.
        variance: The variances, in the shape of the means.
        mixed: Mean weights ``[out, in]`` and variances of the inputs of the dense layer that these
            are the outputs of, from which their correlations follow; ``None`` elsewhere.
    """

    def __init__(
        self, loc: Tensor, variance: Tensor, mixed: tuple[Tensor, Tensor] | None = None
    ) -> None:
        self.loc, self.variance, self.mixed = loc, variance, mixed

    def each(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Apply a function that moves numbers to means and variances."""
        locs = function(self.loc, *args, **kwargs)
        variances = function(self.variance, *args, **kwargs)
        if isinstance(locs, Tensor):
            return Uncertain(locs, variances)
        return tuple(map(Uncertain, locs, variances))

    def assign(self, other: Uncertain) -> Uncertain:
        """Take the numbers of another, as functions that work in place do."""
        self.loc, self.variance, self.mixed = other.loc, other.variance, other.mixed
        return self

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        rule = RULES.get(func)
        if rule is None:
            raise NoRuleError(f"{func.__name__} has no rule for means and variances")
        return rule(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name in _FACTS or name in _QUESTIONS or name in _MAKERS:
            return getattr(self.loc, name)
        if name in ("T", "mT"):
            return self.each(Tensor.t if name == "T" else lambda x: x.mT)
        if not hasattr(Tensor, name) or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        method = getattr(Tensor, name)
        need(callable(method), f"the attribute {name} has no rule for means and variances")
        return partial(_call, method, self)

    def __len__(self) -> int:
        return len(self.loc)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self.loc.shape)})"

    __hash__ = object.__hash__


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return Uncertain.__torch_function__(function, (), args, kwargs)


def _operator(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: _call(function, self, *args)


_OPERATORS = """
    add radd sub rsub mul rmul truediv rtruediv matmul rmatmul neg pow rpow getitem setitem
    eq ne lt le gt ge bool float int iadd isub imul itruediv abs
"""
for _name in _OPERATORS.split():
    setattr(Uncertain, f"__{_name}__", _operator(getattr(Tensor, f"__{_name}__")))
