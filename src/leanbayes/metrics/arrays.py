"""Targets and scores of other libraries: NumPy arrays, Series and lists."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
_SMALL = (torch.int8, torch.int16, torch.int32)


def as_tensor(values: Any) -> Tensor:
    """Return an array, a Series, a DataFrame or a list as a tensor; small integers become int64."""
    if not isinstance(values, Tensor):
        values = values.to_numpy() if hasattr(values, "to_numpy") else values
        flags = getattr(values, "flags", None)
        values = torch.as_tensor(values if flags is None or flags.writeable else values.copy())
    return values.long() if values.dtype in _SMALL else values


def takes_arrays(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of tensors take what :func:`as_tensor` takes."""

    @wraps(function)
    def converted(*args: Any, **named: Any) -> R:
        tensors = {name: _converted(value) for name, value in named.items()}
        return function(*map(_converted, args), **tensors)

    return converted


def _converted(value: Any) -> Any:
    is_array = hasattr(value, "__array_interface__") or hasattr(value, "to_numpy")
    return as_tensor(value) if isinstance(value, Tensor | list) or is_array else value
