"""Batches of arrays and of data loaders, and models that are called with them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from leanbayes.errors import nearest, require, require_count
from leanbayes.metrics.scores import as_tensor
from leanbayes.prediction.one_pass import Uncertain


class Parts(NamedTuple):
    """What a batch consists of.

    Attributes:
        inputs: the tensors that the model is called with.
        names: the keywords of the last of them; the others come by position.
        target: target of the outputs, if there is one.
        weight: weight of every example; all the same if not given.
    """

    inputs: tuple[Tensor, ...]
    names: tuple[str, ...] = ()
    target: Tensor | None = None
    weight: Tensor | None = None

    def with_target(self, key: str) -> Tensor:
        """Return the target; raise a sentence if there is none."""
        if self.target is None:
            raise ValueError(
                f"the batch has no target{nearest(key, self.names) if self.names else ''}; give "
                f"pairs (x, y), or dictionaries with {key!r}, or name another key with target=…"
            )
        return self.target


def parts_of(batch: Any, key: str) -> Parts:
    """Return the parts of a batch: a tensor, ``(x,)``, ``(x, y)`` or a dictionary; ``x`` may be
    any of these, or a tuple of tensors.
    """
    if isinstance(batch, Parts):
        return batch
    if isinstance(batch, Mapping):
        inputs = {name: value for name, value in batch.items() if name != key}
        return Parts(_tensors(tuple(inputs.values())), tuple(inputs), batch.get(key))
    if isinstance(batch, Tensor):
        return Parts((batch,))
    require(
        isinstance(batch, list | tuple) and len(batch) in (1, 2),
        f"a batch is a {type(batch).__name__}; give a tensor, a pair (x, y) or a dictionary",
    )
    x, *rest = batch
    if isinstance(x, Mapping):
        return parts_of(x, key)._replace(target=rest[0] if rest else x.get(key))
    given = tuple(x) if isinstance(x, list | tuple) else (x,)
    return Parts(_tensors(given), (), rest[0] if rest else None)


def _tensors(inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    require(bool(inputs), "a batch has no inputs; give at least one tensor")
    for value in inputs:
        if not isinstance(value, Tensor):
            raise TypeError(f"an input of a batch is a {type(value).__name__}; give tensors")
    return inputs


class Called(nn.Module):
    """A model that takes tensors by position and gives one.

    Args:
        model: the model.
        names: the keywords that it takes its inputs by; none for positions.
        output: from what the model gives to the tensor that the likelihood is about; by default
            that tensor itself, or its ``logits``.
    """

    def __init__(
        self, model: nn.Module, names: tuple[str, ...], output: Callable[[Any], Tensor] | None
    ) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *inputs: Tensor) -> Tensor:
        named = dict(zip(self.names, inputs, strict=True)) if self.names else {}
        given = self.model(**named) if named else self.model(*inputs)
        if self.output is not None:
            return self.output(given)
        outputs = getattr(given, "logits", given)
        if not isinstance(outputs, Tensor | Uncertain):
            raise TypeError(
                f"the model gives a {type(given).__name__}; choose a tensor of it with "
                "output=lambda given: …"
            )
        return outputs


class ArrayBatches:
    """Inputs and targets in memory, shuffled by a seed in every epoch.

    Args:
        x: an array or tensor, or a tuple of them for several inputs.
        y: the targets.
        batch_size: number of examples per step.
        weight: weight of every example.
        data_size: number of examples that these stand for; the sum of their weights if not given.
    """

    def __init__(
        self, x: Any, y: Any, batch_size: int, weight: Any = None, data_size: float | None = None
    ) -> None:
        self.x = tuple(map(_tensor, x)) if isinstance(x, tuple) else (_tensor(x),)
        self.y, self.batch_size = _tensor(y), batch_size
        self.weight = None if weight is None else _tensor(weight)
        sizes = {len(tensor) for tensor in (*self.x, self.y)}
        sizes |= set() if self.weight is None else {len(self.weight)}
        require(len(sizes) == 1, f"inputs and targets have {sorted(sizes)} examples; give as many")
        require(sizes != {0}, "the training data is empty; give at least one example")
        if data_size is None:
            data_size = len(self.y) if self.weight is None else float(self.weight.sum())
        self.data_size = data_size

    @property
    def _relative_weight(self) -> Tensor | None:
        """Weights with mean one, so that the mean over a batch is that over all examples."""
        return None if self.weight is None else self.weight / self.weight.mean()

    def __len__(self) -> int:
        return -(-len(self.y) // self.batch_size)

    def epoch(self, generator: torch.Generator | None) -> Iterator[Parts]:
        """Yield all batches once, shuffled by a generator or in order."""
        order, relative = torch.arange(len(self.y)), self._relative_weight
        if generator is not None:
            order = torch.randperm(len(self.y), generator=generator)
        for index in order.tensor_split(len(self)):
            weight = None if relative is None else relative[index]
            yield Parts(tuple(x[index] for x in self.x), (), self.y[index], weight)


class LoaderBatches:
    """The batches of a DataLoader, or of any iterable that can be run through again."""

    def __init__(self, loader: Iterable[Any], data_size: float | None = None) -> None:
        require(
            not isinstance(loader, Iterator),
            "training data can be run through once only; give a DataLoader or a list of batches",
        )
        self.loader = loader
        found = getattr(loader, "dataset", None)
        if data_size is None and isinstance(found, Sized):
            data_size = len(found)
        require(
            data_size is not None,
            "the number of training examples is unknown; give data_size=…",
        )
        self.data_size: float = data_size  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.loader) if isinstance(self.loader, Sized) else 0

    def epoch(self, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield all batches once, in the loader's own order."""
        yield from self.loader


Batches = ArrayBatches | LoaderBatches


def batches_of(data: Any, batch_size: int, data_size: float | None = None) -> Batches:
    """Return batches of a pair ``(x, y)`` of arrays, of a Dataset, or of a loader."""
    require_count("batch_size", batch_size, 1)
    if isinstance(data, LoaderBatches | ArrayBatches):
        return data
    if isinstance(data, tuple) and len(data) in (2, 3) and not isinstance(data[1], tuple | list):
        x, y, *weight = data
        return ArrayBatches(x, y, batch_size, next(iter(weight), None), data_size)
    if isinstance(data, Dataset):
        return LoaderBatches(DataLoader(data, batch_size, shuffle=True), data_size)
    require(
        isinstance(data, Iterable) and not isinstance(data, Tensor),
        f"training data must be a pair (x, y), a Dataset or a DataLoader, got "
        f"{type(data).__name__}",
    )
    return LoaderBatches(data, data_size)


def _tensor(values: Any) -> Tensor:
    """Return an array, a DataFrame or a tensor as a tensor; double precision becomes float."""
    tensor = as_tensor(values)
    is_array = not isinstance(values, Tensor)
    return tensor.float() if is_array and tensor.dtype == torch.float64 else tensor
