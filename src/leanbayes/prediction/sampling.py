"""The forward passes of one prediction: one for each sample, or all samples folded into one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from leanbayes.distributions import Delta, FixedMap, Map
from leanbayes.distributions.base import draws_anew
from leanbayes.errors import require
from leanbayes.estimators import Estimator, mean
from leanbayes.kernels import keep_memory
from leanbayes.layers import RandomMap
from leanbayes.layers.forward_pass import Held, Pass, one_pass, passing
from leanbayes.models.members import members, tile
from leanbayes.models.noise_switches import held
from leanbayes.ops import LinearOp, Usage
from leanbayes.prediction.inputs import Inputs
from leanbayes.prediction.seeded import is_compiled
from leanbayes.prediction.vectorized.batch_independence import RowsApart
from leanbayes.prediction.vectorized.batch_rules import UnprovenError
from leanbayes.prediction.vectorized.samples import ApartMap, Fold, folding

__all__ = ["Passes", "examples_first"]

_ROWS = 4000
"""How many rows a folded pass has: samples times examples, so that activations stay in caches."""
_NUMBERS = 2**22
"""How many numbers its inputs may have, were they repeated for every sample."""
_SAMPLES = 32
"""How many samples are folded at most."""
_FEWEST = 4
"""With fewer examples at once the loop over samples is as good."""
_SMALL = 32
"""So many examples are worth no slice that goes ahead."""


class Passes:
    """The forward passes of one prediction.

    Args:
        model: what runs.
        inputs: all examples.
        batch_size: how many run at once.
        before: passes of other examples: what they found out about the model is not tried again.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        batch_size: int | None,
        before: Passes | None = None,
    ) -> None:
        self.model, self.inputs = model, inputs
        sizes = inputs.sizes
        self.members, self.total = members(model), sizes[0]
        self.step = batch_size or max(self.total, 1)
        self.shared: frozenset[nn.Module] = before.shared if before else frozenset()
        self.mixes: bool = before.mixes if before else _is_watched(model)
        self.is_even = len(set(sizes)) == 1 and self.total > 0

    def draw(self, samples: int, coherent: bool) -> Tensor | None:
        """Outputs of every draw; ``None`` if they have to be drawn in another way from the start.

        That is where a layer turns out to be called more than once, or rows to be mixed.
        """
        sizes = None if coherent else self._sizes(samples)
        if self.is_even and not self.mixes and sizes is not None:
            return self._folded(*sizes)
        drawn = []
        for _ in range(samples):
            with held(self.model) if coherent else nullcontext():
                outputs = self._outputs()
            if outputs is None:
                return None
            drawn.append(outputs)
        return torch.cat(drawn)

    def _batch(self, start: int, step: int) -> list[Tensor]:
        part = self.inputs.cut(start, step)
        return [tile(t, self.members, d) for t, d in zip(part.tensors, part.dims, strict=True)]

    def _outputs(self) -> Tensor | None:
        """One draw for all examples: ``[members, examples, …]``."""
        parts = []
        for start in range(0, max(self.total, 1), self.step):
            batch = self._batch(start, self.step)
            dim = self.inputs.dims[0]
            rows = batch[0].shape[dim]
            with one_pass(rows, self.shared) as current:
                y = self.inputs.run(self.model, batch)
            if current.repeated:
                self.shared |= current.repeated
                return None
            y = examples_first(y, rows, dim)
            parts.append(y.unflatten(0, (self.members, y.shape[0] // self.members)))
        return torch.cat(parts, 1)

    def _sizes(self, samples: int) -> tuple[list[int], list[int]] | None:
        """How many samples and how many examples folded passes have; ``None``: too few of them."""
        if samples == 1 or not self.total:
            return None
        numbers = sum(t.numel() for t in self.inputs.tensors) * self.members // self.total
        rows = min(_ROWS // self.members, _NUMBERS // max(numbers, 1))
        at_once = min(_SAMPLES, rows // _FEWEST)
        if at_once < 2 or self.step < min(_FEWEST, self.total):
            return None
        shares = _shares(samples, at_once)
        return shares, _slices(self.total, min(self.step, rows // max(shares)))

    def _folded(self, shares: Sequence[int], sizes: Sequence[int]) -> Tensor | None:
        """All draws of all examples, ``[samples · members, examples, …]``, if rows stay apart."""
        keep_memory()
        folded = _Folded(self.model, self.inputs)
        starts = itertools.accumulate(sizes, initial=0)
        try:
            parts = [
                torch.cat([folded(self._batch(start, size), share) for share in shares])
                for start, size in zip(starts, sizes, strict=False)
            ]
        except Exception:  # the loop says whether this is a mistake, and which
            self.mixes = True
            return None
        blocks = [part.unflatten(1, (self.members, -1)) for part in parts]
        return torch.cat(blocks, 2).flatten(0, 1)


class _Folded:
    """A model of which one pass draws several samples; raises where rows may not stay apart.

    Args:
        model: what runs.
        inputs: what it is called with.
    """

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        self.model, self.inputs = model, inputs
        self.apart = RowsApart([*model.parameters(), *model.buffers()], members(model))
        self.maps: dict[nn.Module, Held] = {}

    def __call__(self, batch: Sequence[Tensor], samples: int) -> Tensor:
        """Outputs ``[samples, rows, …]``."""
        run = torch.func.vmap(partial(self._run, batch), randomness="different")
        y: Tensor = run(torch.arange(samples, device=batch[0].device))
        return y

    def _run(self, batch: Sequence[Tensor], index: Tensor) -> Tensor:
        """The outputs of the samples that a vmap runs over."""
        dim = self.inputs.dims[0]
        rows = batch[0].shape[dim]
        current = _FoldedPass(rows, maps=self.maps, apart=self.apart)
        follow = self.apart.batch(batch, self.inputs.dims)
        with folding(Fold(index, self.apart)), passing(current), follow:
            y = self.inputs.run(self.model, batch)
            with self.apart.paused():
                first = examples_first(y, rows, dim)
                place = 0 if len(y) == rows else dim
            self.apart.expect(y, place)
        return first


@dataclass(eq=False)
class _FoldedPass(Pass):
    """A pass in which every random map has noise of its own for every row, and is called once.

    Attributes:
        maps: what other passes of this prediction have drawn from.
        apart: follows the rows of the pass.
    """

    maps: dict[nn.Module, Held] = field(kw_only=True)
    apart: RowsApart = field(kw_only=True)
    _called: set[nn.Module] = field(default_factory=set)

    def draw(
        self,
        layer: nn.Module,
        fresh: Callable[[Estimator, Usage, LinearOp], Map],
        estimator: Estimator,
        usage: Usage,
        op: LinearOp,
    ) -> Map:
        """A map that keeps rows apart; raise if there is none."""
        if layer in self._called:
            raise UnprovenError("a layer is called more than once")
        self._called.add(layer)
        if layer in self.maps:
            return self.maps[layer](None, op, usage)
        with self.apart.paused():
            drawn = fresh(estimator, usage, op)
        if isinstance(drawn, ApartMap):
            return drawn
        if isinstance(drawn, FixedMap):
            self._keep(drawn, layer, estimator)
        elif not draws_anew(drawn):
            raise UnprovenError("a layer draws what all rows share")
        self.maps[layer] = Held(drawn, op)
        return drawn

    def _keep(self, drawn: FixedMap, layer: nn.Module, estimator: Estimator) -> None:
        """Let a map without noise be used by all samples."""
        without_noise = isinstance(layer, RandomMap) and isinstance(layer.posterior(), Delta)
        if estimator is not mean and not without_noise:
            raise UnprovenError("a layer draws weights")
        self.apart.keep(drawn.weight)


def _is_watched(model: nn.Module) -> bool:
    """Whether someone else looks at passes, or compiled them."""
    hooks = (m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    return is_compiled(model) or any(hooks)


def _shares(total: int, most: int) -> list[int]:
    """A number as a sum of about equal ones, as few as can be."""
    count = -(-total // most)
    share, larger = divmod(total, count)
    return [share + 1] * larger + [share] * (count - larger)


def _slices(total: int, most: int) -> list[int]:
    """How many examples slices have: a few in the first, which soon shows whether rows stay apart.

    Slices of different sizes show also what depends on how many rows there are.
    """
    if total <= min(most, _SMALL):
        return [total]
    sizes = [3, *_shares(total - 3, most)]
    return sizes if len(set(sizes)) > 1 else [2, *_shares(total - 2, most)]


def examples_first(y: object, rows: int, dim: int) -> Tensor:
    """The output with examples in its first dimension: they are there, or where the input's are."""
    if not isinstance(y, Tensor):
        raise TypeError(
            f"the model gives a {type(y).__name__}{_parts(y)}, and predictions need one tensor; "
            f"choose it, such as output=lambda o: {_choice(y)}"
        )
    if dim == 0:
        return y
    places = [d for d in (0, dim) if d < y.ndim and y.shape[d] == rows]
    require(
        len(places) == 1,
        f"the output has shape {tuple(y.shape)}, in which the {rows} rows of the batch "
        f"{'may stand in two places' if places else 'are not'}; let the model return [batch, …]",
    )
    return y.movedim(places[0], 0)


def _parts(y: object) -> str:
    return f" with {', '.join(map(str, y))}" if isinstance(y, Mapping) else ""


def _choice(y: object) -> str:
    """How to choose a tensor of an output: the logits, or the first of several."""
    if not isinstance(y, Mapping) or "logits" in y:
        return "o[0]" if isinstance(y, tuple | list) else "o.logits"
    return f"o[{next(iter(y), 'logits')!r}]"
