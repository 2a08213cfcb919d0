"""Inputs of a prediction: tensors, arrays, several inputs, named ones, or batches of these."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from leanbayes.errors import require

LABELS = ("labels", "label")
"""Names under which batches carry their targets."""

Targets = str | Sequence[str] | int | None


@dataclass(frozen=True)
class Inputs:
    """Some examples, as a model is called with them.

    Attributes:
        tensors: the inputs.
        dims: dimension of each that counts examples.
        names: names of keyword inputs; empty for positional inputs.
        constants: further keyword arguments, the same for all examples.
        output: name of the predicted tensor among the model's outputs.
    """

    tensors: tuple[Tensor, ...]
    dims: tuple[int, ...]
    names: tuple[str, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    output: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        for tensor, dim in zip(self.tensors, self.dims, strict=True):
            require(
                0 <= dim < tensor.ndim,
                f"batch_dim is {dim}; inputs have shapes {[tuple(t.shape) for t in self.tensors]}",
            )

    @property
    def sizes(self) -> list[int]:
        """How many examples every input has."""
        return [t.shape[d] for t, d in zip(self.tensors, self.dims, strict=True)]

    def cut(self, start: int, step: int) -> Inputs:
        """Return some of the examples."""
        sizes = self.sizes
        require(
            step >= sizes[0] or len(set(sizes)) == 1,
            f"inputs have {sizes} examples, which cannot be cut into slices of {step}; give all "
            "the same number",
        )
        each = zip(self.tensors, self.dims, sizes, strict=True)
        parts = (t.narrow(d, start, min(step, size - start)) for t, d, size in each)
        return replace(self, tensors=tuple(parts))

    def run(self, model: nn.Module, tensors: Sequence[Tensor]) -> Any:
        """Return what the model gives for tensors in place of these inputs."""
        named = dict(zip(self.names, tensors, strict=True)) if self.names else {}
        y = model(*(() if named else tensors), **named, **self.constants)
        return y if self.output is None else self.output(y)


@dataclass(frozen=True)
class Reader:
    """Makes inputs of what a user has.

    Attributes:
        model: model to be called with them.
        batch_dim: dimension that counts examples, or one for each input.
        targets: parts of a batch that are not inputs: names of a dictionary, or how many parts at
            the end of a tuple.
        output: name of the predicted tensor among the model's outputs.
    """

    model: nn.Module
    batch_dim: int | Sequence[int] = 0
    targets: Targets = None
    output: Callable[[Any], Any] | None = None

    def batches(self, x: object) -> Iterator[Inputs]:
        """Yield all inputs at once, or the batches of a loader."""
        x = _without_labels(x)
        if isinstance(x, Tensor | _Array):
            yield self._tuple((x,))
        elif isinstance(x, tuple):
            yield self._tuple(x)
        elif isinstance(x, Mapping):
            yield self._mapping(x)
        elif is_loader(x):
            count = 0
            for count, batch in enumerate(_in_order(x), 1):  # noqa: B007
                yield self._batch(batch)
            require(count > 0, "there are no batches; a generator that was used up is empty")
        else:
            raise TypeError(
                f"the inputs are a {type(x).__name__}; give a tensor, an array, a DataFrame, a "
                "tuple or a dictionary of them, or a DataLoader of such batches"
            )

    def _batch(self, batch: object) -> Inputs:
        """Return a batch of a loader, without its targets."""
        if isinstance(batch, Mapping):
            return self._mapping(batch)
        if not isinstance(batch, tuple | list):
            return self._tuple((batch,))
        left = len(batch) - self._targets_of(len(batch))
        require(left > 0, f"a batch has {len(batch)} parts, all of them targets; give inputs too")
        parts = tuple(batch[:left])
        if left == 1 and isinstance(parts[0], Mapping):
            return self._mapping(parts[0])
        return self._tuple(parts)

    def _targets_of(self, parts: int) -> int:
        """How many parts at the end of a tuple are targets: one, unless the model needs them all.

        A batch of a single part is an input.
        """
        if isinstance(self.targets, int):
            return self.targets
        needed = [p for p in _parameters(self.model) if p.default is p.empty]
        return 0 if parts == 1 or parts == sum(p.kind in _POSITIONAL for p in needed) else 1

    def _tuple(self, parts: Sequence[object]) -> Inputs:
        tensors = tuple(self._tensor("an input", part) for part in parts)
        return Inputs(tensors, self._dims(len(tensors)), output=self.output)

    def _mapping(self, batch: Mapping[str, Any]) -> Inputs:
        absent = self._absent(batch)
        kept = {name: value for name, value in batch.items() if name not in absent}
        constants = {n: v for n, v in kept.items() if v is None or isinstance(v, _CONSTANT)}
        tensors = {
            name: self._tensor(f"input {name!r}", value)
            for name, value in kept.items()
            if name not in constants
        }
        require(
            bool(tensors),
            f"a batch has {', '.join(map(str, batch)) or 'nothing'}, which leaves no input; give "
            "inputs beside the targets",
        )
        self._check_names(kept)
        dims = self._dims(len(tensors))
        return Inputs(tuple(tensors.values()), dims, tuple(tensors), constants, self.output)

    def _absent(self, batch: Mapping[str, Any]) -> Sequence[str]:
        """Return the names of targets: labels, unless the model cannot do without."""
        if isinstance(self.targets, int):
            raise TypeError(f"targets is {self.targets}; batches are dictionaries, so give names")
        if self.targets is None:
            needed = {p.name for p in _parameters(self.model) if p.default is p.empty}
            return [name for name in LABELS if name not in needed]
        names = (self.targets,) if isinstance(self.targets, str) else self.targets
        for name in names:
            require(
                name in batch,
                f"targets are {name!r}, and a batch has {', '.join(map(str, batch))}; name one "
                "of those",
            )
        return names

    def _check_names(self, names: Iterable[str]) -> None:
        known = _parameters(self.model)
        if any(p.kind is p.VAR_KEYWORD for p in known):
            return
        taken = [p.name for p in known]
        for name in names:
            if name not in taken:
                raise TypeError(
                    f"the model takes {', '.join(taken)}, and an input is called {name!r}; if it "
                    f"is a target, say targets={name!r}"
                )

    def _tensor(self, what: str, value: object) -> Tensor:
        value = _without_labels(value)
        if isinstance(value, Tensor):
            return value
        if isinstance(value, _Array):
            return in_precision_of(self.model, _from_array(what, value))
        raise TypeError(f"{what} is a {type(value).__name__}; give tensors or arrays")

    def _dims(self, count: int) -> tuple[int, ...]:
        if isinstance(self.batch_dim, int):
            return (self.batch_dim,) * count
        dims = tuple(self.batch_dim)
        require(len(dims) == count, f"batch_dim is {dims}, and there are {count} inputs")
        return dims


def is_loader(x: object) -> bool:
    """Return whether something gives batches, one after the other."""
    if isinstance(x, Dataset):
        raise TypeError(
            f"a {type(x).__name__} gives single examples; wrap it in torch.utils.data.DataLoader"
        )
    x = _without_labels(x)
    return isinstance(x, Iterable) and not isinstance(x, Tensor | _Array | tuple | Mapping | str)


def in_precision_of(model: nn.Module, x: Tensor) -> Tensor:
    """Return numbers in the precision of the model's weights; whole ones stay whole."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), x)
    return x.to(weight.dtype) if x.is_floating_point() else x


@runtime_checkable
class _Array(Protocol):
    """An array of NumPy, which need not be installed."""

    @property
    def __array_interface__(self) -> Mapping[str, Any]: ...

    def copy(self) -> Any: ...


def _without_labels(x: object) -> object:
    """Return the array of a DataFrame or Series, which have labels and a ``to_numpy`` method."""
    to_numpy = getattr(x, "to_numpy", None)
    return x if to_numpy is None else to_numpy()


_CONSTANT = (bool, int, float, str)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _from_array(what: str, array: _Array) -> Tensor:
    """Return an array as a tensor, without a copy where torch can use its memory."""
    interface = array.__array_interface__
    kind = interface["typestr"]
    if kind[1] not in "biufc" or kind[0] == ">":
        raise TypeError(
            f"{what} is an array of {'objects' if kind[1] == 'O' else kind}; give numbers, such as "
            "x.astype('float32')"
        )
    backwards = any(stride < 0 for stride in interface["strides"] or ())
    read_only = interface["data"][1]
    return torch.from_numpy(array.copy() if backwards or read_only else array)


def _parameters(model: nn.Module) -> Sequence[inspect.Parameter]:
    return list(inspect.signature(model.forward).parameters.values())


def _in_order(loader: Any) -> Iterable[Any]:
    if isinstance(loader, DataLoader) and isinstance(loader.sampler, RandomSampler):
        warnings.warn(
            "the DataLoader shuffles, so predictions cannot be matched to examples; make it "
            "with shuffle=False",
            stacklevel=2,
        )
    return loader
