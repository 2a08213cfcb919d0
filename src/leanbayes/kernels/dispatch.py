"""The table of kernels, their autograd function, and a report of those that a model uses.

A kernel is registered for a *question* (``draw``: a weight matrix; ``local``: outputs; ``samples``:
outputs of all samples of a prediction; ``entries`` of a table; ``kl``; and ``noise`` of given
variances), a *family*, an op or prior, and a *mode*. Where the table has none, the formula of the
distribution is used.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.jit import is_tracing  # type: ignore[attr-defined]

from leanbayes.display import DisplayTable
from leanbayes.distributions import WeightDistribution
from leanbayes.distributions.base import STAND_INS
from leanbayes.kernels.native import is_native, library, native_state, normals
from leanbayes.precision import full_precision
from leanbayes.torch_private import forward_level, is_exporting, is_transformed, transforms_active

Mode = Literal["eager", "graph", "formula"]
EAGER: Mode = "eager"
GRAPH: Mode = "graph"
FORMULA: Mode = "formula"

PLAIN = (nn.Parameter, Tensor)
"""Classes of tensors that no other library has wrapped."""
STRIDED = torch.strided

F = TypeVar("F", bound=Callable[..., Any])
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
    if not torch.compiler.is_dynamo_compiling() or is_exporting():
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
) -> Callable[[F], F]:
    """Register a function ``(q, other, *arguments)`` that returns ``None`` where it does not apply.

    Args:
        question: ``"draw"``, ``"local"``, ``"samples"``, ``"entries"``, ``"kl"`` or ``"noise"``.
        kind: exact class of the distribution.
        other: exact class of the op, or of the prior.
        mode: :data:`EAGER` or :data:`GRAPH`.
    """

    def register(function: F) -> F:
        modes = TABLE.setdefault((question, kind, other), {})
        modes[mode] = function

        def choose(q: Any, about: Any, *arguments: Any) -> Any:
            theirs = vars(about).values() if question == "kl" else ()
            found = modes.get(mode_of(*vars(q).values(), *theirs, *arguments))
            return None if found is None else found(q, about, *arguments)

        STAND_INS[question, kind, other] = choose
        return function

    return register


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


_QUESTIONS = ("draw", "local", "samples", "kl")


@dataclass(frozen=True)
class KernelRow:
    """The kernel of one random map for one question.

    Attributes:
        layer: name of the random map.
        question: ``draw`` (weights), ``local`` (outputs), ``samples`` (outputs of all samples of a
            prediction) or ``kl``.
        kernel: ``"native"``; ``"torch"`` for closed-form gradients by torch's own operations;
            ``None`` for the plain formula.
        reason: the kernel, or the reason for having none.
    """

    layer: str
    question: str
    kernel: str | None
    reason: str


@dataclass(frozen=True, repr=False)
class Kernels:
    """The kernels that compute noise and KLs; ``print`` shows a sentence, and a table of a model.

    Attributes:
        native: whether native kernels are used, for float32 on a CPU.
        reason: the instructions they use; or why they are not used.
        rows: one for every random map of a model and every question.
    """

    native: bool
    reason: str
    rows: tuple[KernelRow, ...] = ()

    def __str__(self) -> str:
        return self.table().text() if self.rows else self._sentence()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table().html() if self.rows else self._sentence()

    def _sentence(self) -> str:
        if not self.native:
            return f"torch's own operations: {self.reason}"
        return f"native kernels with {self.reason} (LEANBAYES_NATIVE=0 switches them off)"

    def table(self) -> DisplayTable:
        """Return one row for every random map and question."""
        head = ("layer", "question", "kernel", "reason")
        rows = [(r.layer, r.question, r.kernel or "–", r.reason) for r in self.rows]
        return DisplayTable(head, rows, self._sentence(), left=(0, 1, 2, 3))


def kernels(model: nn.Module | None = None) -> Kernels:
    """Return which kernels compute noise and KLs, for a model layer by layer.

    Args:
        model: a converted model, whose random maps are listed.

    Returns:
        A report that prints as a table.

    Example:
        >>> import leanbayes as lb
        >>> lb.kernels().native == str(lb.kernels()).startswith("native")
        True
        >>> model = lb.convert(nn.Linear(3, 2), lb.posteriors.MatrixNormal(), lb.priors.Normal(1.0))
        >>> lb.kernels(model).rows[0].reason
        'formula: no kernel for KroneckerNormal'
    """
    return Kernels(*native_state(), () if model is None else tuple(_rows(model)))


def _rows(model: nn.Module) -> Iterator[KernelRow]:
    for name, module in model.named_modules():
        posterior, op = getattr(module, "posterior", None), getattr(module, "op", None)
        if isinstance(posterior, nn.Module) and op is not None:
            q, p = posterior(), module.get_submodule("prior")()
            for question in _QUESTIONS:
                about = {"draw": None, "kl": p}.get(question, op)
                yield KernelRow(name, question, *_kernel(question, q, about))


def _kernel(question: str, q: WeightDistribution, about: Any) -> tuple[str | None, str]:
    """Return the kernel of a question, and the reason."""
    kind, families = type(q), {family for _, family, _ in TABLE}
    if kind not in families:
        bases = [base.__name__ for base in kind.__mro__ if base in families]
        subclass = f", a subclass of {bases[0]}" if bases else ""
        return None, f"formula: no kernel for {kind.__name__}{subclass}"
    if (question, kind, type(about)) not in TABLE:
        pair = "" if about is None else f" with {type(about).__name__}"
        return None, f"formula: no kernel for {kind.__name__}{pair}"
    noise = getattr(q, "noise", "normal")
    if noise != "normal":
        return None, f"formula: no kernel for {noise} noise"
    tensors = [t.detach() for t in vars(q).values() if isinstance(t, Tensor)]
    if mode_of(*tensors) != EAGER:
        return None, "formula: the tensors are traced, mapped or wrapped"
    native, reason = native_state()
    if not native:
        return "torch", reason
    if library(*(t.contiguous() for t in tensors)) is None:
        given = ", ".join(sorted({f"{t.dtype} on {t.device}" for t in tensors}))
        return "torch", f"native kernels need torch.float32 on cpu, got {given}"
    return "native", reason
