"""Forward passes of a prediction: one for each sample, or all samples in one pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from leanbayes.distributions import Delta, FixedMap, Map, WeightDistribution
from leanbayes.errors import require
from leanbayes.estimators import Estimator, mean
from leanbayes.layers import RandomMap
from leanbayes.layers.dropout import MCDropout
from leanbayes.layers.forward_pass import Draws, Held, draws_anew, forward_pass
from leanbayes.layers.recurrent import Recurrent
from leanbayes.models.baselines import FunctionalDropout
from leanbayes.models.random_maps import held, members, tile
from leanbayes.ops import Linear, LinearOp, Usage
from leanbayes.posteriors import Rank1
from leanbayes.prediction.eval_mode import is_compiled
from leanbayes.prediction.inputs import Inputs
from leanbayes.prediction.vectorized.batch_rules import UnprovenError
from leanbayes.prediction.vectorized.samples import ApartMap, RowsApart, SharedNoise
from leanbayes.torch_private import hooks

_ROWS = 4000
"""Rows of a vectorized pass: samples times examples, so that activations stay in caches."""
_NUMBERS = 2**22
"""Maximum size of its inputs, were they repeated for every sample."""
_SAMPLES = 32
"""Maximum number of samples in one pass."""
_FEWEST = 4
"""With fewer examples at once the loop over samples is as fast."""
_SHARED = "a layer draws noise that all examples share"
_SMALL = 32
"""With at most so many examples no small slice goes ahead."""


class Passes:
    """The forward passes of one prediction."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        batch_size: int | None,
        before: Passes | None = None,
    ) -> None:
        self.model, self.inputs = model, inputs
        self.sizes = inputs.sizes
        self.members, self.total = members(model), self.sizes[0]
        self.step = batch_size or max(self.total, 1)
        self.shared: frozenset[nn.Module] = before.shared if before else frozenset()
        self.refused: str | None = before.refused if before else watched(model)
        self.reason: str | None = None
        self.laws: dict[nn.Module, WeightDistribution] = {}

    def draw(self, samples: int, coherent: bool) -> Tensor | None:
        """Return the outputs of every draw; ``None`` if they have to be drawn again, another way.

        That happens when a layer turns out to be called more than once, or when there is no proof
        that examples do not interact.
        """
        self.reason = self._why_looped(samples, coherent)
        if self.reason is not None:
            return self._looped(samples, coherent)
        try:
            return self._vectorized(*self._shares(samples))
        except UnprovenError as error:
            self.refused = f"examples may interact: {error}"
            return None

    def _why_looped(self, samples: int, coherent: bool) -> str | None:
        if coherent:
            return "coherent=True draws one function per sample"
        if samples == 1:
            return "there is only one sample"
        if self.total == 0:
            return "there are no examples"
        if len(set(self.sizes)) > 1:
            return f"inputs have different numbers of examples, {self.sizes}"
        if self.step < min(_FEWEST, self.total):
            return f"batch_size is less than {_FEWEST}"
        if any(map(_has_factors_per_example, self.model.modules())):
            return "rank-one factors outside of dense layers are faster sample by sample"
        if self._rows() < 2 * _FEWEST:
            return "examples are too large to run several samples at once"
        return self.refused

    def _looped(self, samples: int, coherent: bool) -> Tensor | None:
        drawn = []
        self.laws.clear()
        for number in range(samples):
            with held(self.model) if coherent else nullcontext(), self._watch(number):
                outputs = self._outputs()
            if outputs is None:
                return None
            drawn.append(outputs)
        return torch.cat(drawn)

    def _watch(self, number: int) -> FunctionalDropout | nullcontext[None]:
        """In the first pass of MC dropout, look for dropout that is off."""
        is_watched = number == 0 and any(isinstance(m, MCDropout) for m in self.model.modules())
        return FunctionalDropout() if is_watched and not is_compiled(self.model) else nullcontext()

    def _batch(self, start: int, step: int) -> list[Tensor]:
        part = self.inputs.cut(start, step)
        return [tile(t, self.members, d) for t, d in zip(part.tensors, part.dims, strict=True)]

    def _outputs(self) -> Tensor | None:
        """Return one draw for all examples: ``[members, examples, …]``."""
        parts = []
        for start in range(0, max(self.total, 1), self.step):
            batch = self._batch(start, self.step)
            dim = self.inputs.dims[0]
            rows = batch[0].shape[dim]
            draws = Draws(self.shared, laws=self.laws)
            with forward_pass(rows, draws=draws):
                y = self.inputs.run(self.model, batch)
            if draws.repeated:
                self.shared |= draws.repeated
                return None
            y = examples_first(y, rows, dim)
            parts.append(y.unflatten(0, (self.members, y.shape[0] // self.members)))
        return torch.cat(parts, 1)

    def _rows(self) -> int:
        """Return how many rows a vectorized pass may have, counted without members."""
        numbers = sum(t.numel() for t in self.inputs.tensors) * self.members // self.total
        return min(_ROWS // self.members, _NUMBERS // max(numbers, 1))

    def _shares(self, samples: int) -> tuple[list[int], list[int]]:
        """Return how many samples and how many examples vectorized passes have."""
        rows = self._rows()
        shares = _shares(samples, min(_SAMPLES, rows // _FEWEST))
        return shares, _slices(self.total, min(self.step, rows // max(shares)))

    def _vectorized(self, shares: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Return all draws of all examples, ``[samples · members, examples, …]``."""
        vectorized = _Vectorized(self.model, self.inputs, self.members)
        starts = itertools.accumulate(sizes, initial=0)
        parts = [
            torch.cat([vectorized(self._batch(start, size), share) for share in shares])
            for start, size in zip(starts, sizes, strict=False)
        ]
        blocks = [part.unflatten(1, (self.members, -1)) for part in parts]
        return torch.cat(blocks, 2).flatten(0, 1)


class _Vectorized:
    """A model of which one pass draws several samples."""

    def __init__(self, model: nn.Module, inputs: Inputs, count: int) -> None:
        self.model, self.inputs = model, inputs
        self.apart = RowsApart([*model.parameters(), *model.buffers()], count)
        self.maps: dict[nn.Module, Held] = {}

    def __call__(self, batch: Sequence[Tensor], samples: int) -> Tensor:
        """Return outputs ``[samples, rows, …]``; raise where examples may interact."""
        run = torch.func.vmap(partial(self._run, batch), randomness="different")
        try:
            y: Tensor = run(torch.arange(samples, device=batch[0].device))
        except UnprovenError:
            raise
        except Exception as error:
            why = self._why_refused(batch, error)
            if why is None:
                raise
            raise UnprovenError(why) from error
        return y

    def _why_refused(self, batch: Sequence[Tensor], error: Exception) -> str | None:
        """Return why an error is not one of the vectorized pass; ``None`` if it is.

        The batch has a size that the user has not asked for: a model that cannot run it alone is
        run as the user asked, and raises its own error if that is a mistake.
        """
        if isinstance(error, RuntimeError) and _is_limit_of_vmap(error):
            return f"torch.func.vmap cannot run the model ({_first_line(error)})"
        rows = batch[0].shape[self.inputs.dims[0]]
        try:
            with forward_pass(rows):
                self.inputs.run(self.model, batch)
        except Exception as alone:
            return f"the model cannot run a batch of {rows} ({_first_line(alone)})"
        return None

    def _run(self, batch: Sequence[Tensor], index: Tensor) -> Tensor:
        """Return the outputs of the samples that a vmap runs over."""
        dim = self.inputs.dims[0]
        rows = batch[0].shape[dim]
        draws = _ApartDraws(maps=self.maps, apart=self.apart)
        noise = SharedNoise(index, self.apart)
        follow = self.apart.batch(batch, self.inputs.dims)
        with forward_pass(rows, draws=draws, noise=noise), follow:
            y = self.inputs.run(self.model, batch)
            with self.apart.paused():
                first = examples_first(y, rows, dim)
                place = 0 if len(y) == rows else dim
            self.apart.expect(y, place)
        return first


def _has_factors_per_example(module: nn.Module) -> bool:
    """Whether rank-one factors scale channels, entries of a table or the states of a sequence."""
    maps = module.maps.values() if isinstance(module, Recurrent) else (module,)
    return any(
        isinstance(m, RandomMap)
        and isinstance(m.posterior.spec, Rank1)
        and (isinstance(module, Recurrent) or not isinstance(m.op, Linear))
        for m in maps
    )


def _is_limit_of_vmap(error: RuntimeError) -> bool:
    """Whether torch.func.vmap raised an error to refuse an operation, by the words it uses."""
    return "vmap" in str(error) or "Batching rule" in str(error)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


@dataclass(eq=False)
class _ApartDraws(Draws):
    """Draws in which every random map has noise for every row, and is called once."""

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
        """Return a map that keeps rows apart; raise if there is none."""
        if layer in self._called:
            raise UnprovenError("a layer is called more than once")
        self._called.add(layer)
        if layer in self.maps:
            return self.maps[layer](None, op, usage)
        with self.apart.paused():
            if isinstance(layer, RandomMap) and layer.draws_for_all(estimator, usage, op):
                raise UnprovenError(_SHARED)
            try:
                drawn = fresh(estimator, usage, op)
            except RuntimeError as error:
                if not _is_limit_of_vmap(error):
                    raise
                raise UnprovenError(_SHARED) from error
        if isinstance(drawn, ApartMap):
            return drawn
        if isinstance(drawn, FixedMap):
            self._keep(drawn, layer, estimator)
        elif not draws_anew(drawn):
            raise UnprovenError(_SHARED)
        self.maps[layer] = Held(drawn, op)
        return drawn

    def _keep(self, drawn: FixedMap, layer: nn.Module, estimator: Estimator) -> None:
        """Let a map without noise be used by all samples."""
        without_noise = isinstance(layer, RandomMap) and isinstance(layer.posterior(), Delta)
        if estimator is not mean and not without_noise:
            raise UnprovenError("a layer draws weights that all examples share")
        self.apart.keep(drawn.weight)


def watched(model: nn.Module) -> str | None:
    """Return whether the model has hooks or is compiled, as a reason for the loop."""
    if is_compiled(model):
        return "the model is compiled"
    return "the model has forward hooks" if has_forward_hooks(model) else None


def has_forward_hooks(model: nn.Module) -> bool:
    """Return whether something of the user runs before or after the forward pass of a module."""
    kinds = (kind for module in model.modules() for kind in hooks(module))
    return any(kind.startswith("forward") for kind in kinds)


def _shares(total: int, most: int) -> list[int]:
    """Return a number as a sum of about equal ones, as few as can be."""
    count = -(-total // most)
    share, larger = divmod(total, count)
    return [share + 1] * larger + [share] * (count - larger)


def _slices(total: int, most: int) -> list[int]:
    """Return sizes of slices: a few examples first, which soon show whether examples interact.

    Slices of different sizes show also what depends on the size of the batch.
    """
    if total <= min(most, _SMALL):
        return [total]
    sizes = [3, *_shares(total - 3, most)]
    return sizes if len(set(sizes)) > 1 else [2, *_shares(total - 2, most)]


def examples_first(y: object, rows: int, dim: int) -> Tensor:
    """Return the output with examples in its first dimension."""
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
    """Return how to choose a tensor of an output: the logits, or the first of several."""
    if not isinstance(y, Mapping) or "logits" in y:
        return "o[0]" if isinstance(y, tuple | list) else "o.logits"
    return f"o[{next(iter(y), 'logits')!r}]"
