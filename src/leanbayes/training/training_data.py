"""Training data: arrays cut into shuffled batches, or the batches of a loader."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from leanbayes.errors import require, require_count
from leanbayes.metrics.arrays import as_tensor
from leanbayes.training.batches import Parts


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
    """The batches of a DataLoader, or of any iterable that can be run through again.

    Args:
        loader: loader of pairs ``(x, y)`` or dictionaries.
        data_size: number of examples; that of the loader's data set if not given.
    """

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
