"""A function with a gradient in closed form: seed, redrawn noise, double backward, autocast."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function

from leanbayes.kernels.native import normals
from leanbayes.precision import full_precision

Tensors = tuple[Tensor | None, ...]


class Value(NamedTuple):
    """A value, the seed of its native noise (``None``: torch drew it) and tensors to keep."""

    value: Tensor
    seed: int | None = None
    kept: Tensors = ()


class Saved(NamedTuple):
    """One call, as its backward pass sees it.

    Attributes:
        tensors: arguments.
        kept: tensors that the forward pass kept.
        seed: seed of native noise.
        needed: whether each argument needs a gradient.
    """

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
