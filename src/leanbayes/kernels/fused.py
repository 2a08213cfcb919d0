"""When a function with a gradient of its own may run, and how it is differentiated twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.autograd.function import Function

from leanbayes.precision import full_precision

__all__ = ["PLAIN", "Fused", "fusible", "in_full_precision", "twice_differentiable"]

Backward = Callable[..., tuple[Tensor | None, ...]]

PLAIN = (Tensor, nn.Parameter)
"""Tensors that no other library has wrapped."""


def fusible(*tensors: Tensor | None) -> bool:
    """Whether torch computes with these tensors at once: nothing traces, maps or wraps them.

    An export, ``torch.func`` and forward-mode derivatives see the plain formulas, and a compiler
    sees operators where :func:`~leanbayes.kernels.in_graph` says so.
    """
    if (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
    ):
        return False
    for t in tensors:
        if t is not None and (
            type(t) not in PLAIN or t.layout is not torch.strided or is_functorch_wrapped_tensor(t)
        ):
            return False
    return True


class Fused(Function):
    """A function with a gradient of its own, of tensors that are :func:`fusible`.

    What torch asks of arguments at every call has been asked then.
    """

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        return super(Function, cls).apply(*arguments)  # type: ignore[misc]


def in_full_precision(backward: Backward) -> Backward:
    """A backward pass without autocast, as its forward pass was."""

    @wraps(backward)
    def exact(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if not torch._C._is_any_autocast_enabled():
            return backward(ctx, *grads)
        with full_precision(grads[0].device):
            return backward(ctx, *grads)

    return exact


def twice_differentiable(
    plain: Callable[..., Tensor], inputs: Sequence[Tensor | None], ctx: Any, gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradient of a plain formula as torch derives it, which can be differentiated again."""
    needed = ctx.needs_input_grad[: len(inputs)]
    wanted = [t for t, need in zip(inputs, needed, strict=True) if t is not None and need]
    with torch.enable_grad():
        found = iter(torch.autograd.grad(plain(*inputs), wanted, gradient, create_graph=True))
    rest = len(ctx.needs_input_grad) - len(inputs)
    return (*(next(found) if need else None for need in needed), *(None,) * rest)
