"""The table of kernels: which function computes a question for one exact family and op.

A kernel is registered for a *question* (``draw``: a weight matrix; ``local``: outputs; ``samples``:
outputs of all samples of a prediction; ``entries`` of a table; ``kl``; and ``noise`` of given
variances), a *family*, an op or prior, and a *mode*. Where the table has none, the formula of the
distribution is used.
"""

from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.jit import is_tracing  # type: ignore[attr-defined]

from leanbayes.distributions.base import STAND_INS
from leanbayes.kernels.native import is_native
from leanbayes.torch_private import forward_level, is_transformed, transforms_active

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

    Args:
        *arguments: tensors; anything else is ignored.
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
    if not torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting():
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
