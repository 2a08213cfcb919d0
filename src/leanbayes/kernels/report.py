"""Report of the kernels that a model uses, or why there is none."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from leanbayes.display import DisplayTable
from leanbayes.distributions import WeightDistribution
from leanbayes.kernels.dispatch import EAGER, TABLE, library, mode_of
from leanbayes.kernels.native import native_state

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
