"""Batches of data that lie in memory: one gather for several, no Python per example."""

import hashlib
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from leanbayes.lab.data.augment import Augmentation
from leanbayes.lab.data.dataset import Examples

GATHERED = 512
"""Examples fetched at once: small batches share the cost of a call and still fit the cache."""


class Batches:
    """Shuffled batches whose order depends on the seed and the number of the epoch, nothing else.

    A run that resumes at epoch e, or in the middle of it, sees what it would have seen.

    Args:
        examples: what to draw from.
        size: examples in a batch, over all ranks; the last one of an epoch may be smaller.
        seed: one number for the whole run.
        augment: changes whole batches at random, see :class:`PadCropFlip`.
        drop_last: leave a smaller last batch out.
        rank: which part of every batch this process takes.
        ranks: into how many equal parts a batch is cut; what cannot be cut is left out.

    Example:
        >>> data = Examples(torch.arange(10.0).view(10, 1), torch.arange(10))
        >>> batches = Batches(data, size=4, seed=1)
        >>> [len(y) for _, y in batches.epoch(0)]
        [4, 4, 2]
        >>> first, again = (torch.cat([y for _, y in batches.epoch(7)]) for _ in range(2))
        >>> torch.equal(first, again)
        True
    """

    def __init__(
        self,
        examples: Examples,
        size: int,
        *,
        seed: int = 0,
        augment: Augmentation | None = None,
        drop_last: bool = False,
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
        self._used = len(examples) // size * size if drop_last else len(examples) // ranks * ranks
        if not self._used:
            raise ValueError(
                f"{len(examples)} examples do not fill one batch of {size}; choose a smaller size"
            )

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return -(-self._used // self.size)

    def order(self, epoch: int) -> Tensor:
        """The examples in the order of an epoch, of all ranks."""
        return torch.randperm(len(self.examples), generator=_generator(self.seed, epoch))

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of every batch of an epoch, from batch ``start`` on."""
        order = self.order(epoch)[: self._used].to(self.examples.stored.device)
        for first in range(start, len(self), self._together):
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
        """Every example once, as stored and not augmented: for evaluation."""
        for start in range(0, len(self.examples), self.size):
            part = self.examples[start : start + self.size]
            x = part.x
            yield x, x if part.targets is None else part.targets


def _generator(*key: int) -> Generator:
    """A generator for this key; neighbouring keys have unrelated streams."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
