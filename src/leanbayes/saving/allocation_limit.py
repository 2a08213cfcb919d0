"""Bound on the memory that a file may request while its model is built."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

_FROM_SIZES = {"arange", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones"}
_FROM_SIZES |= {"rand", "randint", "randn", "randperm", "range", "zeros", "tril_indices"}
_FROM_SIZES |= {"triu_indices", "new_empty", "new_empty_strided", "new_full", "new_ones"}
_FROM_SIZES |= {"new_zeros", "resize_"}
"""Functions and methods that make a tensor of any size from numbers alone."""

_REPEATING = {"repeat", "repeat_interleave", "tile"}


class AllocationLimit(TorchFunctionMode):
    """Limit on the elements of the tensors that code may make; more raise before memory is taken.

    Views count where something is done with them: a view of any size is small, its copy is not.
    The meta device would find the sizes too, but torch takes seconds for the first operation there.

    Args:
        elements: how many there may be.

    Example:
        >>> import torch
        >>> with AllocationLimit(10):
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
        name, options = getattr(func, "__name__", ""), kwargs or {}
        tensors = [value for value in (*args, *options.values()) if isinstance(value, Tensor)]
        if name in _FROM_SIZES or name.endswith("_window"):
            size = _product((*args, *options.values()))
            self.made += size**2 if name == "eye" and len(args) == 1 else size
        elif name in _REPEATING:
            self.made += tensors[0].numel() * _product((*args[1:], *options.values()))
        self._check(max([self.made, *(tensor.numel() for tensor in tensors)]))
        return func(*args, **options)

    def _check(self, count: int) -> None:
        if count > self.elements:
            raise ValueError(
                f"{count} elements are asked for, and at most {self.elements} can be meant"
            )


def _product(values: tuple[Any, ...]) -> int:
    """The product of a shape: the first whole numbers, one by one or together."""
    for value in values:
        if isinstance(value, tuple | list):
            return math.prod(value)
        if isinstance(value, int):
            return math.prod(abs(each) for each in values if isinstance(each, int) and each)
    return 1
