"""Eval mode for as long as someone needs it."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from leanbayes.layers.dropout import DROPOUT

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


@contextmanager
def dropping_out(model: nn.Module) -> Iterator[None]:
    """Let dropout layers draw, whatever their mode: MC dropout, within a block of eval mode.

    Other threads that run the model meanwhile notice that.
    """
    before = {m: m.training for m in model.modules() if isinstance(m, DROPOUT)}
    try:
        for layer in before:
            layer.training = True
        yield
    finally:
        for layer, mode in before.items():
            layer.training = mode
