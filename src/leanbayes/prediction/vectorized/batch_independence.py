"""Proof that a forward pass keeps the rows of a batch apart.

:class:`RowsApart` watches a pass and follows which dimension of every tensor counts rows. Whatever
it does not know it refuses: a function of rows that is not in
:data:`~leanbayes.prediction.vectorized.batch_rules.ROW_WISE`, a tensor that nobody saw being made,
and numbers that change with how many rows there are.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from leanbayes.prediction.vectorized.batch_rules import (
    BEFORE_NOISE,
    ROW_WISE,
    Call,
    UnprovenError,
    functions,
    getters,
    require_proof,
)
from leanbayes.torch_private import is_transformed

_SHAPES = {
    *functions("size dim numel __len__ stride is_contiguous is_floating_point is_complex"),
    *getters("shape ndim dtype device layout requires_grad is_nested is_sparse is_cpu is_cuda"),
}
"""What says nothing of the numbers in a tensor."""

_MAKERS = {*functions("zeros ones new_zeros new_ones")}
_IN_BLOCKS = {*functions("repeat_interleave")}
_REPEATS = {*functions("expand repeat"), *_IN_BLOCKS}
"""What makes constants, or repeats them, and may give each row an equal part."""

_SIZED = {*_MAKERS, *_REPEATS, *functions("view reshape unflatten broadcast_to")}
"""What receives sizes, which are in no number that it computes."""


class RowsApart(TorchFunctionMode):
    """Follows the rows of forward passes, and raises where it cannot.

    Args:
        constants: tensors that are the same for all rows: parameters and buffers.
        blocks: number of equal blocks of rows, each with separate constants: members.
    """

    def __init__(self, constants: Iterable[Tensor], blocks: int = 1) -> None:
        super().__init__()
        self._blocks = blocks
        self._constants = list(constants)
        self._known = {id(tensor) for tensor in self._constants}
        self._dims = WeakIdKeyDictionary()
        self._rows = 0
        self._is_watching = False
        self._numbers: list[object] = []
        self._proven: dict[int, list[object]] = {}

    @contextmanager
    def batch(self, inputs: Sequence[Tensor], dims: Sequence[int]) -> Iterator[Sequence[Tensor]]:
        """Follow a pass over inputs, whose dimensions ``dims`` count rows.

        A pass with as many rows as one that kept them apart does what that one did.
        """
        self._rows = inputs[0].shape[dims[0]]
        if self._rows in self._proven:
            yield inputs
            return
        self._dims, self._numbers = WeakIdKeyDictionary(), []
        self._is_watching = True
        try:
            for x, dim in zip(inputs, dims, strict=True):
                self.follow(x, dim)
            with self:
                yield inputs
        finally:
            self._is_watching = False
        alike = all(numbers == self._numbers for numbers in self._proven.values())
        require_proof(alike, "numbers depend on the size of the batch")
        self._proven[self._rows] = self._numbers

    def paused(self) -> AbstractContextManager[object]:
        """Let a block that is known to keep rows apart run unseen."""
        return torch.DisableTorchFunction() if self._is_watching else nullcontext()

    def follow(self, tensor: Tensor, dim: int | None) -> Tensor:
        """Say which dimension of a tensor counts rows; ``None``: it is the same for all."""
        if self._is_watching:
            self._dims[tensor] = dim
        return tensor

    def keep(self, constant: Tensor) -> None:
        """Say that a tensor is the same for all rows, in all passes."""
        self._constants.append(constant)
        self._known.add(id(constant))

    def dim(self, tensor: Tensor) -> int | None:
        """Return which dimension counts rows; ``None`` for a constant."""
        if id(tensor) in self._known:
            return None
        require_proof(
            tensor in self._dims, "a tensor was not computed from the inputs and parameters"
        )
        found: int | None = self._dims[tensor]
        return found

    def expect(self, tensor: Tensor, dim: int) -> None:
        """Raise unless this dimension counts rows."""
        require_proof(
            not self._is_watching or self.dim(tensor) == dim,
            f"dimension {dim} does not count examples",
        )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _SHAPES:
            return func(*args, **kwargs)
        tensors = list(_tensors((*args, *kwargs.values())))
        dims = [self.dim(tensor) for tensor in tensors]
        rows = [(t, d) for t, d in zip(tensors, dims, strict=True) if d is not None]
        if func not in _SIZED:
            self._numbers.append((func, *_numbers((*args, *kwargs.values()))))
        if not rows or func in _MAKERS:
            y = func(*args, **kwargs)
            dim = self._equal_part(func, args, y)
        else:
            constants = [t for t, d in zip(tensors, dims, strict=True) if d is None]
            y, dim = _row_wise(func, Call(args, kwargs, rows, constants), tensors)
        for tensor in _tensors((y,)):
            there = dim is None or (0 <= dim < tensor.ndim and tensor.shape[dim] == self._rows)
            require_proof(there, f"{func.__name__} loses the examples")
            self.follow(tensor, dim)
        return y

    def _equal_part(self, func: object, args: Sequence[Any], y: Any) -> int | None:
        """The one dimension of a constant that has a place for each row, equal in each block."""
        if func not in _MAKERS and func not in _REPEATS:
            return None
        before = args[0].shape if func in _REPEATS else ()
        sizes = (*(1,) * (y.ndim - len(before)), *before)
        repeats = (1, self._blocks) if func in _IN_BLOCKS else (1,)
        pairs = zip(y.shape, sizes, strict=True)
        equal = [d for d, (n, m) in enumerate(pairs) if n == self._rows and m in repeats]
        return equal[0] if len(equal) == 1 else None


def _row_wise(
    func: Callable[..., Any], call: Call, tensors: Sequence[Tensor]
) -> tuple[Any, int | None]:
    """Call a function that keeps examples apart: its output, and the dimension that counts them."""
    name, args, kwargs = func.__name__, call.args, call.kwargs
    require_proof(
        func in ROW_WISE and kwargs.get("out") is None,
        f"{name} is not known to keep examples apart",
    )
    if any(map(is_transformed, tensors)):
        require_proof(
            func not in BEFORE_NOISE, f"{name} cannot run behind noise for all samples at once"
        )
        in_place = name.endswith("_") and not name.endswith("__")
        require_proof(
            not in_place or is_transformed(args[0]), f"{name} writes noise into a tensor without it"
        )
    y = func(*args, **kwargs)
    try:
        return y, ROW_WISE[func](call, next(_tensors((y,))))
    except UnprovenError as error:
        raise UnprovenError(f"{name} {error}") from None


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments and in their lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _numbers(values: Iterable[Any]) -> Iterator[object]:
    for value in values:
        if isinstance(value, int | float):
            yield value
        elif isinstance(value, tuple | list):
            yield from _numbers(value)
