"""All samples of a prediction in one pass, with noise that examples share.

A prediction needs the distribution of each example's outputs, but not the correlation of examples.
So several examples may share a noise value, and the moments of the first random layer are computed
once for all samples. That needs a proof that examples do not interact: :class:`RowsApart` watches
a pass and follows the dimension of every tensor that counts rows. It refuses functions that are
not in :data:`~leanbayes.prediction.vectorized.batch_rules.ROW_WISE`, tensors of unknown origin,
and numbers that change with the number of rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from leanbayes.distributions import Factor, Map, Moments, NoiseSource, WeightDistribution
from leanbayes.distributions.base import dispatch
from leanbayes.kernels import Sharing, windows
from leanbayes.ops import LinearOp
from leanbayes.prediction.vectorized.batch_rules import (
    BEFORE_NOISE,
    ROW_WISE,
    Call,
    UnprovenError,
    functions,
    getters,
    require_proof,
)
from leanbayes.torch_private import is_transformed, outside_vmap

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


SHARED_BY = 10
"""How many examples use one number of noise."""


def shared_draws(examples: int) -> int:
    """Return how many draws serve so many examples, each about ten of them."""
    return -(-examples // SHARED_BY)


def repeated(draws: Tensor, examples: int) -> Tensor:
    """Return draws in dimension 1, each for the examples that share it."""
    return draws.repeat_interleave(SHARED_BY, 1)[:, :examples]


class SharedNoise(NoiseSource):
    """Noise of the samples that one pass runs at once, as the vmapped axis of tensors behind it."""

    question = "samples"

    def __init__(self, index: Tensor, apart: RowsApart) -> None:
        self.index = index
        self.apart = apart

    def outputs(
        self, q: WeightDistribution, x: Tensor, op: LinearOp, bias: Tensor | None = None
    ) -> Tensor:
        self.apart.expect(x, op.batch_dim)
        with self.apart.paused():
            y = outside_vmap(x, partial(_outputs, q, op, bias))
        return self.apart.follow(y, op.batch_dim)

    def draw(self, law: Moments, op: LinearOp) -> Tensor:
        raise TypeError("moments belong to one sample; draw outputs, which cover all samples")

    def per_example(self, draw: Callable[[tuple[int, ...]], Tensor], examples: int) -> Tensor:
        """Draw ``[examples, …]`` for every sample, each shared by about ten examples."""

        def draws(samples: int, place: int | None, index: Tensor) -> tuple[Tensor, int]:
            return repeated(draw((samples, shared_draws(examples))), examples), 0

        return outside_vmap(self.index, draws)

    def seen(self, drawn: Map, op: LinearOp) -> Map:
        return ApartMap(drawn, op.batch_dim, self.apart)


@dataclass(frozen=True, eq=False)
class ApartMap:
    """A map with separate noise for every row, as a pass that follows rows sees it."""

    drawn: Callable[[Tensor], Tensor]
    batch_dim: int
    apart: RowsApart

    def __call__(self, x: Tensor, /) -> Tensor:
        self.apart.expect(x, self.batch_dim)
        with self.apart.paused():
            y = self.drawn(x)
        return self.apart.follow(y, self.batch_dim)


def _outputs(
    q: WeightDistribution,
    op: LinearOp,
    bias: Tensor | None,
    samples: int,
    place: int | None,
    x: Tensor,
) -> tuple[Tensor, int]:
    """Return one draw for each sample: samples become rows where the input differs between them."""
    dim = op.batch_dim
    x = x.unsqueeze(dim) if place is None else x.movedim(place, dim)
    given, rows = (x.shape[dim], x.shape[dim + 1]), x.flatten(dim, dim + 1)
    sharing = Sharing(samples, given[1], SHARED_BY)
    drawn: Tensor | None = dispatch("samples", q, op, rows, bias, sharing) if dim == 0 else None
    if drawn is not None:
        return op.silence(x, drawn.unflatten(0, (samples, given[1]))), 0
    moments = q.moments(rows, op)
    y = op.silence(x, moments.rsample(op, _Windows(sharing, given[0])))
    if bias is None:
        return y, dim
    bias = op.spread(bias.unsqueeze(0), y.ndim - 1).unsqueeze(dim)
    is_noisy = moments.variance is not None or moments.common is not None
    return y.add_(bias) if is_noisy else y + bias, dim


class _Windows(SharedNoise):
    """Noise of all samples around a law that is known for all of them, or for one."""

    def __init__(self, sharing: Sharing, given: int) -> None:
        self.sharing, self.given = sharing, (given, sharing.examples)

    def draw(self, law: Moments, op: LinearOp) -> Tensor:
        dim, given, samples = op.batch_dim, self.given, self.sharing.samples
        y = law.mean.unflatten(dim, given) if law.mean.ndim else law.mean
        if law.variance is not None:
            std = _root(law.variance).unflatten(dim, given)
            sizes = std.shape[:dim] + std.shape[dim + 2 :]
            e = windows(self.sharing, sizes.numel(), std).unflatten(-1, sizes)
            e = e.movedim((0, 1), (dim, dim + 1))
            is_room = given[0] == samples and y.shape in ((), std.shape)
            y = torch.addcmul(y, std, e, out=std) if is_room else torch.addcmul(y, std, e)
        if law.common is not None and law.rows is not None:
            std = _root(law.common).movedim(op.channel_dim, -1).unflatten(dim, given)
            noise = std * _colored(std, law.rows, dim, samples)
            y = y + noise.movedim(-1, op.channel_dim + (op.channel_dim >= 0))
        return y


def _root(variance: Tensor) -> Tensor:
    """Return the square root, in separate memory."""
    return variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt_()


def _colored(std: Tensor, rows: Factor, dim: int, samples: int) -> Tensor:
    """Return correlated noise that groups of examples share up to a random sign of each of them."""
    examples = std.shape[dim + 1]
    positions = std.shape[:dim] + std.shape[dim + 2 : -1]
    white = std.new_empty(samples, shared_draws(examples), *positions, rows.width).normal_()
    shared = repeated(rows.color(white), examples)
    signs = torch.randint(2, (samples, examples), device=std.device).to(std.dtype) * 2 - 1
    signs = signs.reshape(samples, examples, *(1,) * (shared.ndim - 2))
    return (shared * signs).movedim((0, 1), (dim, dim + 1))
