"""Batches of data in memory: one gather for several, with random crops and flips."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from leanbayes.errors import choose
from leanbayes.lab.data.dataset import Dataset, Examples


class Augmentation(Protocol):
    """Changes a batch ``[batch, channels, height, width]`` at random."""

    def __call__(self, x: Tensor, generator: Generator) -> Tensor: ...


@dataclass(frozen=True)
class Flip:
    """Mirrors every image left to right with probability one half [matrix normal, section 5.3]."""

    shared: bool = False

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        coins = torch.rand(1 if self.shared else len(x), generator=generator) < 0.5
        return torch.where(coins.to(x.device).view(-1, 1, 1, 1), x.flip(-1), x)


@dataclass(frozen=True)
class PadCropFlip:
    """Pads the border, crops at random to the old size, and mirrors half of the images.

    Args:
        pad: pixels on each side; 2 for rank-1 BNNs (32 to 36), 4 for variance networks.
        fill: the value of the border, one number or one a channel. It is what a black pixel has
            become: :meth:`leanbayes.lab.data.Dataset.black`.
        flip: whether to mirror.
        shared: one offset and one coin for the whole batch, as the code of the variance-networks
            paper has it.
    """

    pad: int = 2
    fill: float | tuple[float, ...] = 0.0
    flip: bool = True
    shared: bool = False

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        batch, _, height, width = x.shape
        draws = 1 if self.shared else batch
        offsets = torch.randint(2 * self.pad + 1, (2, draws), generator=generator).to(x.device)
        down, right = offsets.expand(2, batch)
        windows = self._padded(x).unfold(2, height, 1).unfold(3, width, 1)
        cropped = windows[torch.arange(batch, device=x.device), :, down, right]
        return Flip(self.shared)(cropped, generator) if self.flip else cropped

    def _padded(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        whole = (batch, channels, height + 2 * self.pad, width + 2 * self.pad)
        padded = x.new_tensor(self.fill).view(-1, 1, 1).expand(whole).clone()
        padded[:, :, self.pad : self.pad + height, self.pad : self.pad + width] = x
        return padded


def augmentation(name: str, dataset: Dataset, pad: int = 2) -> Augmentation | None:
    """Return an augmentation by its name; borders are black as in the raw images."""
    makers: dict[str, Callable[[], Augmentation | None]] = {
        "none": lambda: None,
        "flip": Flip,
        "crop-flip": lambda: PadCropFlip(pad, dataset.black),
        "crop-flip-shared": lambda: PadCropFlip(pad, dataset.black, shared=True),
    }
    return choose("augmentation", name, makers)()


GATHERED = 512
"""Examples fetched at once: small batches share the cost of a call and still fit the cache."""


class Batches:
    """Shuffled batches whose order depends on the seed and the number of the epoch, nothing else.

    A run that resumes at epoch e sees what it would have seen.

    Args:
        examples: examples to draw from.
        size: examples in a batch, over all ranks; the last one of an epoch may be smaller.
        seed: one number for the whole run.
        augment: changes whole batches at random, see :class:`PadCropFlip`.
        rank: index of this process's part of every batch.
        ranks: into how many equal parts a batch is cut; what cannot be cut is left out.
    """

    def __init__(
        self,
        examples: Examples,
        size: int,
        *,
        seed: int = 0,
        augment: Augmentation | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        if size < 1 or not 0 <= rank < ranks or size % ranks:
            raise ValueError(
                f"batches of {size} for rank {rank} of {ranks} cannot be made; the size is a "
                "positive multiple of the number of ranks, and ranks count from 0"
            )
        self.examples = examples
        self.size = size
        self.seed = seed
        self.augment = augment
        self.rank = rank
        self.ranks = ranks
        self._together = max(1, GATHERED * ranks // size)
        self._used = len(examples) // ranks * ranks
        if not self._used:
            raise ValueError(
                f"{len(examples)} examples do not fill one batch of {size}; choose a smaller size"
            )

    def __len__(self) -> int:
        """Return how many batches an epoch has."""
        return -(-self._used // self.size)

    def order(self, epoch: int) -> Tensor:
        """Return the examples in the order of an epoch, of all ranks."""
        return torch.randperm(len(self.examples), generator=_generator(self.seed, epoch))

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of every batch of an epoch."""
        order = self.order(epoch)[: self._used].to(self.examples.stored.device)
        for first in range(0, len(self), self._together):
            index = order[first * self.size : (first + self._together) * self.size]
            for number, (x, y) in enumerate(self._gather(index), first):
                if self.augment is not None:
                    x = self.augment(x, _generator(self.seed, epoch, number, self.rank))
                yield x, x if self.examples.targets is None else y

    def _gather(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's parts of the batches that lie one after another in ``index``."""
        if self.ranks > 1:
            index = torch.cat([batch[self.rank :: self.ranks] for batch in index.split(self.size)])
        x, y = self.examples.take(index)
        mine = self.size // self.ranks
        return zip(x.split(mine), y.split(mine), strict=True)

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every example once, as stored and not augmented: for evaluation."""
        for start in range(0, len(self.examples), self.size):
            part = self.examples[start : start + self.size]
            x = part.x
            yield x, x if part.targets is None else part.targets


def _generator(*key: int) -> Generator:
    """A generator for this key; neighboring keys have unrelated streams."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
