"""Noise by a seed: repeatable, and apart from what other threads draw at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["is_compiled", "noise_by"]

_GLOBAL = threading.RLock()
"""Held while torch's global generators run by a seed."""


def noise_by(seed: int | None, model: nn.Module) -> AbstractContextManager[object]:
    """Let a block draw by a seed; torch's global generators stay as they were.

    The numbers are those after ``torch.manual_seed(seed)``. Where other threads run, they come
    from generators of the block's own. Compiled code draws from the global ones only; such blocks
    wait for each other, and what other code draws meanwhile disturbs them.

    Args:
        seed: of the noise; without one nothing changes.
        model: what will draw.
    """
    if seed is None:
        return nullcontext()
    if threading.active_count() > 1 and not is_compiled(model):
        return _OwnGenerators(seed)
    devices = {tensor.device for tensor in model.state_dict(keep_vars=True).values()}
    return _global_generators(seed, [device for device in devices if device.type != "cpu"])


@contextmanager
def _global_generators(seed: int, devices: Sequence[torch.device]) -> Iterator[None]:
    kind = devices[0].type if devices else "cuda"
    with _GLOBAL, torch.random.fork_rng(devices, device_type=kind):
        torch.manual_seed(seed)
        yield


def is_compiled(model: nn.Module) -> bool:
    """Whether a part of the model runs compiled."""
    return any(
        "_orig_mod" in module._modules or module._compiled_call_impl is not None
        for module in model.modules()
    )


class _OwnGenerators(TorchDispatchMode):
    """Gives every operation that draws a generator of its own, one for each device.

    What has a generator already keeps it: the user's, or that of a block inside this one.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would load its compiler to keep it out of here; nothing compiled comes here."""
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        draw = None if kwargs.get("generator") is not None else _drawing(func)
        if draw is None:
            return func(*args, **kwargs)
        near = args[0] if args and isinstance(args[0], torch.Tensor) else None
        device = kwargs.get("device") or ("cpu" if near is None else near.device)
        return draw(*args, **{**kwargs, "generator": self._generator(torch.device(device))})

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


@cache
def _drawing(func: OpOverload) -> Callable[..., Any] | None:
    """The form of an operation that takes a generator; ``None`` if it draws nothing."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    packet = func.overloadpacket
    forms = [func, *(getattr(packet, name) for name in packet.overloads())]
    wanted = _arguments(func) | {"generator"}
    return next((form for form in forms if _arguments(form) == wanted), None)


def _arguments(func: OpOverload) -> set[str]:
    return {argument.name for argument in func._schema.arguments}
