"""State of a forward pass in one object (rows, estimators, draws, noise), and its drawn maps.

A model is shared by threads and tasks, so none of this is written into it: a pass belongs to the
code inside a ``with`` block, in its own thread and task. Compiled code cannot read a
:class:`~contextvars.ContextVar`; it sees the estimators that its thread has set.
"""

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.distributions import FixedMap, LocalMap, Map, WeightDistribution
from leanbayes.errors import UntiledWarning, require
from leanbayes.estimators import Estimator, auto, mean, weights
from leanbayes.ops import LinearOp, Lookup, Usage
from leanbayes.precision import full_precision, output_dtype, wide
from leanbayes.torch_private import is_in_backward, is_transformed, packs_saved_tensors


@dataclass(frozen=True, eq=False)
class RoundedMap:
    """A map that is applied in full precision, for inputs and outputs in half of it."""

    drawn: Map
    dtype: torch.dtype | None = None

    def __call__(self, x: Tensor, /) -> Tensor:
        with full_precision(x.device):
            y = self.drawn(wide(x))
        same = x.dtype if x.is_floating_point() else y.dtype
        return y.to(output_dtype(x, self.dtype or same))


def draws_anew(drawn: Map) -> bool:
    """Return whether a map draws at every application, so that it is not one function."""
    return isinstance(drawn.drawn if isinstance(drawn, RoundedMap) else drawn, LocalMap)


def with_op(drawn: Map, op: LinearOp) -> Map:
    """Return the same draw for an op that differs in the size of outputs."""
    if isinstance(drawn, RoundedMap):
        return replace(drawn, drawn=with_op(drawn.drawn, op))
    held: Any = drawn  # the maps of this package are dataclasses with an op
    return replace(held, op=op)


Estimators = Mapping[nn.Module, Estimator]
_NONE: Estimators = {}


@dataclass(frozen=True, eq=False)
class Held:
    """An estimator that always returns the same map, drawn for an op."""

    map: Map
    op: LinearOp

    def __call__(self, q: object, op: LinearOp, usage: Usage) -> Map:
        return self.map if op is self.op else with_op(self.map, op)


@dataclass(eq=False)
class Draws:
    """Draws of one forward pass: a layer that is called again keeps its draw.

    Attributes:
        shared: layers that are known to be called more than once, and draw whole weights then.
        repeated: layers that were called again after a draw that fits one call only.
        laws: posteriors of layers that earlier passes with the same parameters have built;
            ``None``: every draw builds its own.
    """

    shared: frozenset[nn.Module] = frozenset()
    repeated: set[nn.Module] = field(default_factory=set)
    laws: dict[nn.Module, WeightDistribution] | None = None
    _drawn: dict[nn.Module, tuple[Usage, Held]] = field(default_factory=dict)
    _gradients: bool = field(default_factory=torch.is_grad_enabled)

    def draw(
        self,
        layer: nn.Module,
        fresh: Callable[[Estimator, Usage, LinearOp], Map],
        estimator: Estimator,
        usage: Usage,
        op: LinearOp,
    ) -> Map:
        """Return the draw of this pass, or a first one, which ``fresh`` makes."""
        if estimator is mean or self._is_checkpointed():
            return fresh(estimator, usage, op)
        if layer in self.shared and estimator is auto:
            estimator = weights
        if layer in self._drawn:
            first, drawn = self._drawn[layer]
            fixed = estimator is weights or isinstance(drawn.map, FixedMap)
            if fixed or (first.batch == usage.batch and not draws_anew(drawn.map)):
                return drawn(None, op, usage)
            if estimator is auto:
                self.repeated.add(layer)
        drawn = Held(fresh(estimator, usage, op), op)
        self._drawn[layer] = usage, drawn
        return drawn.map

    def _is_checkpointed(self) -> bool:
        """Whether activation checkpointing runs this part a second time, in the backward pass."""
        return (
            packs_saved_tensors() or is_in_backward() or torch.is_grad_enabled() != self._gradients
        )


@dataclass(frozen=True, eq=False)
class Pass:
    """Everything that layers look up outside their own parameters.

    Attributes:
        estimators: estimators that replace those of the layers.
        rows: number of examples in the batch, those of all members together; ``None``: unknown.
        draws: draws of this forward pass; ``None``: every call of a layer draws.
        noise: noise that samples share in a vectorized prediction; ``None``: fresh noise.
    """

    estimators: Estimators
    rows: int | None = None
    draws: Draws | None = None
    noise: object | None = None


_NO_PASS = Pass(_NONE)
_PASS: ContextVar[Pass] = ContextVar("leanbayes.pass", default=_NO_PASS)


class _Thread(threading.local):
    """Estimators that compiled code of a thread sees; ``None`` while its tasks differ."""

    def __init__(self) -> None:
        self.estimators: Estimators | None = _NONE
        self.blocks = 0

    def enter(self, before: Estimators, now: Estimators) -> None:
        known = self.estimators is before or not self.blocks
        self.estimators = now if known else None
        self.blocks += 1

    def leave(self, before: Estimators) -> None:
        self.blocks -= 1
        if self.estimators is not None:
            self.estimators = before
        if not self.blocks:
            self.estimators = _NONE


_THREAD = _Thread()


def current_pass() -> Pass:
    """Return the state of the code that is running; compiled code has no pass."""
    return _NO_PASS if torch.compiler.is_dynamo_compiling() else _PASS.get()


@contextmanager
def _running(now: Pass) -> Iterator[None]:
    before = _PASS.get()
    _PASS.set(now)
    try:
        yield
    finally:
        _PASS.set(before)


@contextmanager
def forward_pass(
    rows: int | None = None,
    shared: frozenset[nn.Module] = frozenset(),
    *,
    draws: Draws | None = None,
    noise: object | None = None,
) -> Iterator[Draws]:
    """Treat the code inside a ``with`` block as one forward pass.

    A layer that is called twice keeps its draw, and layers compare their inputs with the number of
    examples. ``predict`` and ``BayesianModule`` do this. Use it in your own loop if a model
    calls a layer twice, or if examples are not in the first dimension of every input.
    """
    draws = Draws(shared) if draws is None else draws
    with _running(replace(_PASS.get(), rows=rows, draws=draws, noise=noise)):
        yield draws


def batch_rows() -> int | None:
    """Return how many examples the batch has, if that is known."""
    return current_pass().rows


@contextmanager
def set_batch_rows(rows: int | None) -> Iterator[None]:
    """Change the number of examples for a block that sees a part of the batch."""
    if torch.compiler.is_dynamo_compiling():
        yield
        return
    with _running(replace(_PASS.get(), rows=rows)):
        yield


def estimator_for(layer: nn.Module) -> Estimator | None:
    """Return the estimator that the innermost block sets for a layer."""
    if not torch.compiler.is_compiling():
        return _PASS.get().estimators.get(layer)
    estimators = _THREAD.estimators
    if estimators is None:
        raise ValueError(
            "several tasks of one thread hold or switch layers at once, which compiled code cannot "
            "separate; call the model that is not compiled"
        )
    return estimators.get(layer)


@contextmanager
def set_estimators(estimators: Estimators) -> Iterator[None]:
    """Give layers other estimators for the length of a block."""
    current = _PASS.get()
    before, now = current.estimators, {**current.estimators, **estimators}
    _THREAD.enter(before, now)
    try:
        with _running(replace(current, estimators=now)):
            yield
    finally:
        _THREAD.leave(before)


def warn_untiled(x: Tensor, batch_dim: int, members: int) -> None:
    """Warn if a mixture is trained on a batch that was not repeated for its members.

    It looks at the first example of every member: they are equal if the batch was repeated. Only
    an input that nothing trainable has computed can be judged, so a mixture behind layers that are
    trained is not. A zero among real numbers equals everything, since dropout makes zeros.
    """
    if members == 1 or x.requires_grad or not torch.is_grad_enabled():
        return
    if torch.compiler.is_compiling() or batch_rows() is not None or not _is_readable(x):
        return
    rows = x.shape[batch_dim]
    if rows == 0 or rows % members:
        return
    first = x.movedim(batch_dim, 0)[:: rows // members]
    if torch.equal(first[1:], first[:-1]):
        return
    equal = first == first[:1]
    if x.is_floating_point():
        equal |= (first == 0) | (first[:1] == 0)
    if not bool(equal.all()):
        warnings.warn(
            f"each of {members} members learns from another part of this batch; repeat it for all "
            "of them: model(lb.tile(x, members)) with lb.tile(y, members), as BayesianModule and "
            "predict do (if parts are meant, ignore leanbayes.errors.UntiledWarning)",
            UntiledWarning,
            stacklevel=2,
        )


def _is_readable(x: Tensor) -> bool:
    """Return whether Python may look at single numbers of a tensor."""
    if type(x) not in (Tensor, nn.Parameter) or x.is_meta or is_transformed(x):
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _blocks_differ(indices: Tensor, members: int) -> bool:
    """Return whether members would look up different entries: positions, and not a tiled batch.

    While an export traces, only a batch has as many entries as there are examples.
    """
    if torch.compiler.is_compiling():
        return False
    blocks = indices.unflatten(0, (members, -1)) if len(indices) % members == 0 else indices[None]
    return not bool((blocks == blocks[:1]).all())


def expand_to_batch(x: Tensor, op: LinearOp, members: int) -> Tensor:
    """Repeat an input with one row for all examples where each member needs its own."""
    rows = batch_rows()
    if members == 1 or rows is None or x.shape[op.batch_dim] != 1:
        return x
    sizes = [-1] * x.ndim
    sizes[op.batch_dim] = rows
    return x.expand(sizes)


def check_usage(usage: Usage, op: LinearOp, x: Tensor, members: int) -> Usage:
    """Compare the examples that an op sees in its input with those of the batch.

    An input with ``k`` rows for each example, as flattened tokens or patches have, uses every
    weight ``k`` times. An input without a dimension of examples, such as the positions of a
    sequence, has no noise per example, and no part for each member.
    """
    rows, given = batch_rows(), usage.batch
    table = isinstance(op, Lookup)
    if rows is None or given is None:
        return usage
    positions = table and members > 1 and x.ndim == 1 and _blocks_differ(x, members)
    if given == rows and not positions:
        return usage
    sizes = x.shape if table else x.shape[:-1]
    elsewhere = rows in [size for axis, size in enumerate(sizes) if axis != op.batch_dim]
    if rows and given % rows == 0 and not elsewhere and not (table and x.ndim == 1):
        return usage._replace(batch=rows, reused=True)
    require(
        members == 1,
        f"{op} with {members} members has an input of shape {tuple(x.shape)}, whose dimension "
        f"{op.batch_dim} does not count the {rows} rows of the batch; if another one does, give "
        "predict that batch_dim, or the layer overrides={name: {'batch_dim': 1}}; if none does, "
        "expand the input to the batch or exclude the layer",
    )
    return usage._replace(batch=None)
