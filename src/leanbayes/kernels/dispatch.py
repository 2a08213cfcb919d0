"""Calls of kernels: the table, the library with its seeds and threads, the gradient.

A kernel is registered for a *question* (``draw``: a weight matrix; ``local``: outputs; ``samples``:
outputs of all samples of a prediction; ``entries`` of a table; ``kl``; and ``noise`` of given
variances), a *family*, an op or prior, and a *mode*. Where the table has none, the formula of the
distribution is used.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.jit import is_tracing  # type: ignore[attr-defined]

from leanbayes.distributions.base import STAND_INS
from leanbayes.kernels.native import STATE, is_native
from leanbayes.precision import full_precision
from leanbayes.torch_private import (
    forward_level,
    is_observed,
    is_transformed,
    onednn_linear,
    transforms_active,
)

Mode = Literal["eager", "graph", "formula"]
EAGER: Mode = "eager"
GRAPH: Mode = "graph"
FORMULA: Mode = "formula"

PLAIN = (nn.Parameter, Tensor)
"""Classes of tensors that no other library has wrapped."""
STRIDED = torch.strided
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # since torch 2.7

K = TypeVar("K", bound=Callable[..., Any])
Key = tuple[str, type, type]

TABLE: dict[Key, dict[Mode, Callable[..., Any]]] = {}
"""Kernels by question, family and op or prior, then by mode."""


def mode_of(*arguments: Any) -> Mode:
    """Decide how tensors are computed with.

    ``EAGER``: torch computes at once; nothing traces, maps or wraps the tensors. ``GRAPH``: a
    compiler traces float32 tensors of a CPU, and its graph may call native kernels. ``FORMULA``:
    everything else, such as an export, ``torch.func`` and forward-mode derivatives.
    """
    if torch.compiler.is_compiling():
        return GRAPH if _fit_graph(arguments) else FORMULA
    if transforms_active() or is_tracing() or forward_level() >= 0:
        return FORMULA
    for t in arguments:
        if isinstance(t, Tensor) and (
            type(t) not in PLAIN or t.layout is not STRIDED or is_transformed(t)
        ):
            return FORMULA
    return EAGER


def _fit_graph(arguments: Sequence[Any]) -> bool:
    if not torch.compiler.is_dynamo_compiling() or _is_exporting():
        return False
    if not is_native() or transforms_active():
        return False
    for t in arguments:
        if isinstance(t, Tensor) and not (
            t.dtype is torch.float32 and t.device.type == "cpu" and type(t) in PLAIN
        ):
            return False
    return True


def kernel(
    question: str, kind: type, other: type = NoneType, *, mode: Mode = EAGER
) -> Callable[[K], K]:
    """Register a function ``(q, other, *arguments)`` that returns ``None`` where it does not apply.

    Args:
        question: ``"draw"``, ``"local"``, ``"samples"``, ``"entries"``, ``"kl"`` or ``"noise"``.
        kind: exact class of the distribution.
        other: exact class of the op, or of the prior.
        mode: :data:`EAGER` or :data:`GRAPH`.
    """

    def register(function: K) -> K:
        modes = TABLE.setdefault((question, kind, other), {})
        modes[mode] = function

        def choose(q: Any, about: Any, *arguments: Any) -> Any:
            theirs = vars(about).values() if question == "kl" else ()
            found = modes.get(mode_of(*vars(q).values(), *theirs, *arguments))
            return None if found is None else found(q, about, *arguments)

        STAND_INS[question, kind, other] = choose
        return function

    return register


_WORTH_THREADS = 2**13


def library(*tensors: Tensor | None) -> Any:
    """Return the library if it can compute with these tensors, else ``None``."""
    found = STATE.library
    if found is None:
        return None
    for t in tensors:
        if t is not None and not (t.dtype is torch.float32 and t.is_cpu and t.is_contiguous()):
            return None
    return found


def loaded() -> Any:
    """Return the library, for noise that it has drawn, even if it is switched off since."""
    return STATE.loaded


def pointer(tensor: Tensor | None) -> int | None:
    """Return the address of the first number of a tensor."""
    return None if tensor is None else tensor.data_ptr()


def native_logs(log_unit: float | None) -> tuple[bool, float]:
    """Return whether factors are logarithms, and the logarithm of their unit."""
    return log_unit is not None, log_unit or 0.0


def normals(shape: Sequence[int], by: int) -> Tensor:
    """Return the normals of a seed: a stream for each row of the first dimension."""
    e = torch.empty(tuple(shape))
    loaded().normals(e.data_ptr(), *as_rows(e), by, threads(e.numel()))
    return e


def as_rows(t: Tensor) -> tuple[int, int]:
    """Return how many rows of how many numbers a tensor is to a kernel; a vector is one row."""
    rows = t.shape[0] if t.ndim > 1 else 1
    return rows, t.numel() // max(rows, 1)


class _Room(threading.local):
    """A number for the seeds of each thread: to make one takes longer than to draw it."""

    def __init__(self) -> None:
        with torch.inference_mode(False):
            self.number = torch.empty((), dtype=torch.int64)


_ROOM = _Room()


def seed() -> int:
    """Return a seed for one block of noise, from torch's generator."""
    return int(_ROOM.number.random_())


def graph_seed() -> Tensor:
    """Draw a seed by torch's operator: a compiler would merge two equal calls of ours."""
    return torch.randint(2**62, ())


def threads(numbers: int) -> int:
    """Return how many threads so many numbers are worth, of those that torch may use."""
    return 1 if numbers < _WORTH_THREADS else torch.get_num_threads()


Tensors = tuple[Tensor | None, ...]


class Value(NamedTuple):
    """A value, the seed of its native noise (``None``: torch drew it) and tensors to keep."""

    value: Tensor
    seed: int | None = None
    kept: Tensors = ()


class Saved(NamedTuple):
    """One call, as its backward pass sees it."""

    tensors: Any
    kept: Any
    seed: int | None
    needed: tuple[bool, ...]


class Computation(ABC):
    """A function of tensors with a gradient in closed form; its options are attributes."""

    @abstractmethod
    def forward(self, *tensors: Any) -> Value:
        """Compute the value."""

    @abstractmethod
    def backward(self, g: Tensor, call: Saved) -> Tensors:
        """Return the gradient of every argument, given that of the value."""

    @abstractmethod
    def plain(self, e: Any, *tensors: Any) -> Tensor:
        """Return the formula with given noise, which torch can differentiate twice."""

    def noise(self, g: Tensor, call: Saved) -> Any:
        """Return the noise of the forward pass; native noise is drawn again from its seed."""
        return None if call.seed is None else normals(g.shape, call.seed)


class _Computed(Function):
    @staticmethod
    def forward(ctx: Any, computation: Computation, *tensors: Tensor | None) -> Tensor:
        y, ctx.seed, kept = computation.forward(*tensors)
        ctx.computation, ctx.arity = computation, len(tensors)
        ctx.save_for_backward(*tensors, *kept)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, saved, arity = grads[0], ctx.saved_tensors, ctx.arity
        call = Saved(saved[:arity], saved[arity:], ctx.seed, ctx.needs_input_grad[1:])
        with full_precision(g.device):  # as the forward pass was
            if torch.is_grad_enabled():
                return None, *_differentiable(ctx.computation, g, call)
            return None, *ctx.computation.backward(g, call)


def _differentiable(computation: Computation, g: Tensor, call: Saved) -> Tensors:
    """Return the gradient as torch derives it from the plain formula, for a second derivative."""
    wanted = [t for t, need in zip(call.tensors, call.needed, strict=True) if need]
    e = computation.noise(g, call)
    with torch.enable_grad():
        y = computation.plain(e, *call.tensors)
        found = iter(torch.autograd.grad(y, wanted, g, create_graph=True))
    return tuple(next(found) if need else None for need in call.needed)


run: Callable[..., Any] = super(Function, _Computed).apply
"""``run(computation, *tensors)``, without what :func:`mode_of` has asked of the tensors already."""


_NARROW = 16
"""With fewer rows, inputs or outputs oneDNN may be slower."""
_LARGE = 4 * 10**6
"""With fewer multiplications it gains nothing."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x weightᵀ + bias``, for use where no gradient is recorded.

    Where torch has MKL, oneDNN takes large products, for which it needs less time.

    Args:
        x: ``[batch, in]``.
        weight: ``[out, in]``; the transpose of a contiguous matrix is as good.
        bias: ``[out]``.
    """
    single = x.dtype == weight.dtype == torch.float32 and x.is_cpu and weight.is_cpu
    linear = _onednn() if single and _is_large(len(x), weight) and _may_differ() else None
    if linear is None:
        return F.linear(x, weight, bias)
    if not weight.t().is_contiguous():
        weight = weight.contiguous()
    return linear(x.contiguous(), weight, bias, "none", [], "")


def products(rows: int, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return :func:`product` with one float32 matrix, for contiguous inputs of so many rows."""
    weight = weight.contiguous()
    linear = _onednn() if _is_large(rows, weight) and _may_differ() else None
    if linear is None:
        return lambda x: F.linear(x, weight)
    return lambda x: linear(x, weight, None, "none", [], "")


def _is_large(rows: int, weight: Tensor) -> bool:
    return rows * weight.numel() >= _LARGE and min(rows, *weight.shape) >= _NARROW


def _may_differ() -> bool:
    """Whether nobody asks what oneDNN does not answer (gradients, FLOPs), or forbids its use."""
    seen = torch.is_grad_enabled() or is_observed()
    return not seen and bool(torch.backends.mkldnn.enabled)


@cache
def _onednn() -> Callable[..., Tensor] | None:
    """Return ``linear`` of oneDNN, if torch was built with both libraries."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return None
    return onednn_linear()
