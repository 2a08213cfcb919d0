"""What holds for the code inside a ``with`` block: in its own thread and task, for no one else.

A model is shared by threads and tasks, so nothing of this is written into it. Compiled code cannot
read a :class:`~contextvars.ContextVar`; it sees the switches of its thread.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from leanbayes.distributions import FixedMap, Map, with_op
from leanbayes.distributions.base import draws_anew
from leanbayes.errors import UntiledWarning, require
from leanbayes.estimators import Estimator, auto, mean, weights
from leanbayes.ops import LinearOp, Lookup, Usage

__all__ = [
    "Held",
    "Pass",
    "announce",
    "announced",
    "current_pass",
    "expanded",
    "one_pass",
    "passing",
    "settle",
    "switch",
    "switched",
    "warn_untiled",
]

Switches = Mapping[nn.Module, Estimator]
_NONE: Switches = {}


@dataclass(frozen=True, eq=False)
class Held:
    """An estimator that always gives one and the same map, drawn for an op."""

    map: Map
    op: LinearOp

    def __call__(self, q: object, op: LinearOp, usage: Usage) -> Map:
        return self.map if op is self.op else with_op(self.map, op)


class _Thread(threading.local):
    """What compiled code of a thread sees: nothing certain while tasks of it differ."""

    def __init__(self) -> None:
        self.switches: Switches | None = _NONE
        self.blocks = 0

    def enter(self, before: Switches, now: Switches) -> None:
        self.switches = None if self.blocks and self.switches is not before else now
        self.blocks += 1

    def leave(self, before: Switches) -> None:
        self.blocks -= 1
        if self.switches is not None:
            self.switches = before
        if not self.blocks:
            self.switches = _NONE


_SWITCHES: ContextVar[Switches] = ContextVar("leanbayes.switches", default=_NONE)
_THREAD = _Thread()


def switched(layer: nn.Module) -> Estimator | None:
    """The estimator that the innermost block around this code gives a layer."""
    if not torch.compiler.is_compiling():
        return _SWITCHES.get().get(layer)
    switches = _THREAD.switches
    if switches is None:
        raise ValueError(
            "several tasks hold or switch layers at once, which compiled code cannot tell apart; "
            "call the model that is not compiled"
        )
    return switches.get(layer)


@contextmanager
def switch(switches: Switches) -> Iterator[None]:
    """Give layers other estimators for the length of a block."""
    before = _SWITCHES.get()
    now = {**before, **switches}
    _SWITCHES.set(now)
    _THREAD.enter(before, now)
    try:
        yield
    finally:
        _SWITCHES.set(before)
        _THREAD.leave(before)


@dataclass(eq=False)
class Pass:
    """One forward pass: a layer that is called again in it keeps its draw.

    Attributes:
        rows: how many examples the batch has, those of all members together.
        shared: layers that are known to be called more than once, and draw whole weights then.
        repeated: layers that were called again after they had drawn what fits one call only.
    """

    rows: int | None = None
    shared: frozenset[nn.Module] = frozenset()
    repeated: set[nn.Module] = field(default_factory=set)
    _draws: dict[nn.Module, tuple[Usage, Held]] = field(default_factory=dict)
    _gradients: bool = field(default_factory=torch.is_grad_enabled)

    def draw(
        self,
        layer: nn.Module,
        fresh: Callable[[Estimator, Usage, LinearOp], Map],
        estimator: Estimator,
        usage: Usage,
        op: LinearOp,
    ) -> Map:
        """The draw of this pass, or a first one, which ``fresh`` makes."""
        if estimator is mean or self._is_checkpointed():
            return fresh(estimator, usage, op)
        if layer in self.shared and estimator is auto:
            estimator = weights
        if layer in self._draws:
            first, drawn = self._draws[layer]
            fixed = estimator is weights or isinstance(drawn.map, FixedMap)
            if fixed or (first.batch == usage.batch and not draws_anew(drawn.map)):
                return drawn(None, op, usage)
            if estimator is auto:
                self.repeated.add(layer)
        drawn = Held(fresh(estimator, usage, op), op)
        self._draws[layer] = usage, drawn
        return drawn.map

    def _is_checkpointed(self) -> bool:
        """Whether activation checkpointing runs this part a second time, in the backward pass."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        in_backward = torch._C._current_graph_task_id() != -1
        return hooks is not None or in_backward or torch.is_grad_enabled() != self._gradients


P = TypeVar("P", bound=Pass)
_PASS: ContextVar[Pass | None] = ContextVar("leanbayes.pass", default=None)
_TILED: ContextVar[tuple[weakref.ref[Tensor], int] | None] = ContextVar(
    "leanbayes.tiled", default=None
)


def current_pass() -> Pass | None:
    """The forward pass that is running, where someone said that one is."""
    return None if torch.compiler.is_dynamo_compiling() else _PASS.get()


@contextmanager
def passing(current: P) -> Iterator[P]:
    """Say which forward pass runs inside the block."""
    before = _PASS.get()
    _PASS.set(current)
    try:
        yield current
    finally:
        _PASS.set(before)


def one_pass(
    rows: int | None = None, shared: frozenset[nn.Module] = frozenset()
) -> AbstractContextManager[Pass]:
    """Say that one forward pass runs inside the block."""
    return passing(Pass(rows, shared))


def announce(batch: Tensor, dim: int) -> None:
    """Say how many examples there are, for as long as this batch lives."""
    if not torch.compiler.is_compiling():
        _TILED.set((weakref.ref(batch), batch.shape[dim]))


def announced() -> int | None:
    """How many examples the batch has, if that was said."""
    if torch.compiler.is_dynamo_compiling():
        return None
    current, tiled = _PASS.get(), _TILED.get()
    if current is not None and current.rows is not None:
        return current.rows
    return tiled[1] if tiled is not None and tiled[0]() is not None else None


def warn_untiled(rows: int | None, members: int) -> None:
    """Say it if a mixture is trained on rows that nobody has repeated for its members.

    Args:
        rows: how many examples a layer sees.
        members: how many members it has.
    """
    if members == 1 or not rows or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return
    tiled = _TILED.get()
    if _PASS.get() is None and (tiled is None or rows != tiled[1]):
        warnings.warn(
            f"each of {members} members learns from another part of this batch; repeat it for all "
            "of them: model(lb.tile(x, members)) with lb.tile(y, members), as BayesianModule and "
            "predict do (if parts are meant, ignore leanbayes.errors.UntiledWarning)",
            UntiledWarning,
            stacklevel=2,
        )


@contextmanager
def portion(count: int) -> Iterator[None]:
    """Say that the code inside the block sees one of so many equal parts of the batch."""
    if torch.compiler.is_dynamo_compiling():
        yield
        return
    current, tiled = _PASS.get(), _TILED.get()
    rows = None if current is None else current.rows
    if current is not None and rows is not None:
        current.rows = rows // count
    if tiled is not None:
        _TILED.set((tiled[0], tiled[1] // count))
    try:
        yield
    finally:
        _TILED.set(tiled)
        if current is not None:
            current.rows = rows


def _blocks_differ(indices: Tensor, members: int) -> bool:
    """Whether members would look up different entries: positions, and not a tiled batch.

    While an export traces, only a batch has as many entries as there are examples.
    """
    if torch.compiler.is_compiling():
        return False
    blocks = indices.unflatten(0, (members, -1)) if len(indices) % members == 0 else indices[None]
    return not bool((blocks == blocks[:1]).all())


def expanded(x: Tensor, op: LinearOp, members: int) -> Tensor:
    """An input with one row for all examples, repeated where each member needs its own."""
    rows = announced()
    if members == 1 or rows is None or x.shape[op.batch_dim] != 1:
        return x
    sizes = [-1] * x.ndim
    sizes[op.batch_dim] = rows
    return x.expand(sizes)


def settle(usage: Usage, op: LinearOp, x: Tensor, members: int) -> Usage:
    """Compare the examples that an op sees in its input with those that were announced.

    An input with ``k`` rows for each example, as flattened tokens or patches have, uses every
    weight ``k`` times. An input in which no dimension counts examples, such as the positions of a
    sequence, has no noise of its own for each of them, and no part for each member.
    """
    rows, given = announced(), usage.batch
    table = isinstance(op, Lookup)
    if rows is None or given is None:
        return usage
    if given == rows and not (table and x.ndim == 1 and _blocks_differ(x, members)):
        return usage
    sizes = x.shape if table else x.shape[:-1]
    elsewhere = rows in [size for axis, size in enumerate(sizes) if axis != op.batch_dim]
    if rows and given % rows == 0 and not elsewhere and not (table and x.ndim == 1):
        return Usage(rows, reused=True)
    require(
        members == 1,
        f"{op} with {members} members has an input of shape {tuple(x.shape)}, whose dimension "
        f"{op.batch_dim} does not count the {rows} rows of the batch; if another one does, give "
        "predict that batch_dim, or the layer overrides={name: {'batch_dim': 1}}; if none does, "
        "expand the input to the batch or exclude the layer",
    )
    return usage._replace(batch=None)
