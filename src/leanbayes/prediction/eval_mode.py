"""State while a prediction is drawn: eval mode of the model, seeded noise of the generators."""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import nn

from leanbayes.torch_private import DispatchMode, calls_compiled, compiled_module, schema_of

_LOCK = threading.Lock()
_EVALUATED: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
"""How many blocks keep a module in eval mode that was in training mode before."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Keep BatchNorm and Dropout in eval mode; the last of several blocks gives modes back.

    Modules that are in eval mode already are not touched.
    """
    with _LOCK:
        switched = [m for m in model.modules() if m.training or m in _EVALUATED]
        for module in switched:
            _EVALUATED[module] = _EVALUATED.get(module, 0) + 1
            module.training = False
    try:
        yield
    finally:
        with _LOCK:
            for module in switched:
                _EVALUATED[module] -= 1
                if not _EVALUATED[module]:
                    del _EVALUATED[module]
                    module.training = True


_GLOBAL = threading.RLock()
"""Held while torch's global generators run by a seed."""


def noise_by(
    seed: int | None, model: nn.Module, *, quick: bool = False
) -> AbstractContextManager[object]:
    """Let a block draw by a seed; torch's global generators stay as they were.

    The numbers are those after ``torch.manual_seed(seed)``. Where other threads run, they come
    from generators of the block's own. Compiled code draws from the global ones only; such blocks
    wait for each other, and what other code draws meanwhile disturbs them.

    Args:
        seed: seed of the noise; without one nothing changes.
        model: model that draws.
        quick: let the main thread use the global generators although other threads run, as they do
            in a notebook. That saves time for every operation, and what those threads draw without
            a seed disturbs the block.
    """
    if seed is None:
        return nullcontext()
    alone = threading.active_count() == 1
    if quick:
        alone |= threading.current_thread() is threading.main_thread()
    if not alone and not is_compiled(model):
        return _OwnGenerators(seed)
    devices = {tensor.device for tensor in model.state_dict(keep_vars=True).values()}
    return _global_generators(seed, [device for device in devices if device.type != "cpu"])


@contextmanager
def _global_generators(seed: int, devices: Sequence[torch.device]) -> Iterator[None]:
    kind = devices[0].type if devices else "cuda"
    with _GLOBAL, torch.random.fork_rng(devices, device_type=kind):
        if devices:
            torch.manual_seed(seed)
        else:  # manual_seed would also seed devices, whose generators are not restored
            torch.default_generator.manual_seed(seed)
        yield


def is_compiled(model: nn.Module) -> bool:
    """Return whether a part of the model runs compiled."""
    return any(
        compiled_module(module) is not None or calls_compiled(module) for module in model.modules()
    )


class _OwnGenerators(DispatchMode):
    """Gives every operation that draws a separate generator, one for each device.

    What has a generator already keeps it: the user's, or that of a block inside this one.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self,
        func: Any,
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
def _drawing(func: Any) -> Callable[..., Any] | None:
    """Return the form of an operation that takes a generator; ``None`` if it draws nothing."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    packet = func.overloadpacket
    forms = [func, *(getattr(packet, name) for name in packet.overloads())]
    wanted = _arguments(func) | {"generator"}
    return next((form for form in forms if _arguments(form) == wanted), None)


def _arguments(func: Any) -> set[str]:
    return {argument.name for argument in schema_of(func).arguments}
