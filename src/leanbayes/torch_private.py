"""Private names of torch: the only file that uses them, with one function each.

``tests/test_torch_private.py`` names what breaks when torch changes one of them, and keeps private
names out of all other files.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._functorch import pyfunctorch
from torch.autograd import forward_ad
from torch.distributions import Distribution
from torch.distributions import kl as torch_kl
from torch.utils._python_dispatch import TorchDispatchMode

is_transformed = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether a transform such as ``torch.func.vmap`` adds or has added dimensions to a tensor."""
transforms_active = torch._C._are_functorch_transforms_active
"""Whether ``torch.func`` runs."""
forward_level = partial(vars(forward_ad).__getitem__, "_current_level")
"""The level of forward-mode derivatives; negative outside of them."""


class DispatchMode(TorchDispatchMode):
    """A mode whose ``__torch_dispatch__`` sees every operation of a block."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do not load torch's compiler to keep it out of the mode: nothing compiled gets here."""
        return False


class Moved(nn.Module):
    """A module that may correct its tensors after ``to``, ``half``, ``cuda`` and the like."""

    def after_move(self, move: Callable[[], object]) -> None:
        """Call ``move``, which changes the tensors."""
        move()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.after_move(lambda: super(Moved, self)._apply(fn, recurse))  # type: ignore[no-untyped-call]
        return self


def compiled_module(module: nn.Module) -> nn.Module | None:
    """Return the module that ``torch.compile(module)`` wrapped, if this is its result."""
    return vars(module)["_modules"].get("_orig_mod")


def calls_compiled(module: nn.Module) -> bool:
    """Return whether ``module.compile()`` was called."""
    return module._compiled_call_impl is not None


_TOP_HOOKS = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # torch 2.7
_HOOKS = tuple(name for name in vars(nn.Module()) if name.endswith("_hooks"))


def hooks(module: nn.Module) -> Iterator[str]:
    """Return the kinds of hooks that a module has: ``"forward_pre_hooks"``, …"""
    attributes = vars(module)
    return (name.removeprefix("_") for name in _HOOKS if attributes.get(name))


def gradient_hooks(tensor: Tensor) -> bool:
    """Return whether something runs when the gradient of a tensor is computed."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def schema_of(operation: Any) -> Any:
    """Return the declaration of an operation such as ``torch.ops.aten.add.Tensor``."""
    return operation._schema


def packs_saved_tensors() -> bool:
    """Return whether a block such as activation checkpointing packs what backward passes need."""
    if _TOP_HOOKS is not None:
        return _TOP_HOOKS(True) is not None
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("in use"):
            return False
    except RuntimeError:
        return True


def is_in_backward() -> bool:
    """Return whether a backward pass runs this code."""
    return torch._C._current_graph_task_id() != -1


def is_observed() -> bool:
    """Return whether a mode such as ``FlopCounterMode`` sees every operation."""
    return torch._C._len_torch_dispatch_stack() > 0


def registered_kl(q: type[Distribution], p: type[Distribution]) -> Callable[..., Tensor]:
    """Return the function that ``kl_divergence`` finds, by a search that a compiler can trace.

    The posterior's class counts before the prior's, as in torch.
    """
    for left in q.__mro__:
        for right in p.__mro__:
            found = torch_kl._KL_REGISTRY.get((left, right))
            if found is not None:
                return found
    raise NotImplementedError(f"KL({q.__name__} ‖ {p.__name__}) is not registered")


def kl_divergence(q: Distribution, p: Distribution) -> Tensor:
    """Return what :func:`torch.distributions.kl_divergence` does, compiled or not."""
    if torch.compiler.is_compiling():
        return registered_kl(type(q), type(p))(q, p)
    return torch_kl.kl_divergence(q, p)


def onednn_linear() -> Callable[..., Tensor] | None:
    """Return oneDNN's ``linear(x, weight, bias, "none", [], "")``, if torch has it."""
    packet = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return getattr(packet, "default", None)


def outside_vmap(
    x: Tensor, function: Callable[[int, int | None, Tensor], tuple[Tensor, int]]
) -> Tensor:
    """Call a function that handles the axis of the innermost ``torch.func.vmap`` itself.

    A ``torch.autograd.Function`` that defines ``vmap`` takes three times as long.

    Args:
        x: input, seen with or without the axis.
        function: maps the size of the axis, its place in the input (``None``: it has none) and the
            input to an output and the place of the axis there.
    """
    vmap: Any = pyfunctorch.retrieve_current_functorch_interpreter()
    level, size = vmap.level(), vmap.batch_size()
    with pyfunctorch.temporarily_pop_interpreter_stack():
        plain, place = torch._C._functorch._unwrap_batched(x, level)
        y, at = function(size, place, plain)
    return torch._C._functorch._add_batch_dim(y, at, level)
