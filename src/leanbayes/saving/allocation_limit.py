"""Allowance: how many elements the tensors may have that a piece of code makes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

__all__ = ["Allowance"]

_MAKERS = {"empty", "eye", "full", "ones", "rand", "randint", "randn", "zeros"}
_MAKERS |= {"new_empty", "new_full", "new_ones", "new_zeros"}
"""Functions and methods that make a tensor of any size from numbers alone."""


class Allowance(TorchFunctionMode):
    """Within it, tensors may be made of so many elements in all; beyond, a sentence and no memory.

    It tells what a description asks for without building it. The meta device would do so too, but
    torch needs five seconds for the first operation there.

    Args:
        elements: how many there may be.

    Example:
        >>> import torch
        >>> with Allowance(10):
        ...     small = torch.zeros(2, 3)
        ...     large = small.new_empty(10**6, 10**6)
        Traceback (most recent call last):
        ValueError: 1000000000006 elements are asked for, and at most 10 can be meant
    """

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements = elements
        self.made = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") in _MAKERS:
            self.made += math.prod(_shape(args, kwargs or {}))
            if self.made > self.elements:
                raise ValueError(
                    f"{self.made} elements are asked for, and at most {self.elements} can be meant"
                )
        return func(*args, **(kwargs or {}))


def _shape(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """The first whole numbers, one by one or together, are the shape."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, tuple | list):
            return tuple(value)
        if isinstance(value, int):
            return tuple(each for each in args if isinstance(each, int))
    return ()
