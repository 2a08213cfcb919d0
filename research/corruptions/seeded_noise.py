"""Random numbers that belong to an image, in whatever batch it comes."""

import hashlib
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

_STEP = 0x9E3779B97F4A7C15  # odd, so that no two images share the low bits of their seeds


class Noise:
    """Noise of which every image has its own: it depends on the image's number, not on its batch.

    Each call gives fresh numbers ``[images, …]``. They are drawn in single precision on the CPU, so
    that images of another type or device get the same.

    Args:
        index: the numbers of the images.
        seed: names the stream of numbers.
        like: the type and device of what is drawn.

    Example:
        >>> whole = Noise(torch.arange(5), "a seed", torch.empty(0)).normal(2, 3)
        >>> part = Noise(torch.tensor([3, 1]), "a seed", torch.empty(0)).normal(2, 3)
        >>> torch.equal(part, whole[[3, 1]])
        True
    """

    def __init__(self, index: Tensor, seed: str, like: Tensor) -> None:
        self._index: list[int] = index.tolist()
        self._seed = seed
        self._like = like
        self._calls = 0

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return numbers between two limits."""
        drawn = torch.empty(len(self._index), *shape)
        for row, generator in zip(drawn.unbind(0), self._generators(), strict=True):
            row.uniform_(low, high, generator=generator)
        return drawn.to(self._like)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers."""
        drawn = torch.empty(len(self._index), *shape)
        for row, generator in zip(drawn.unbind(0), self._generators(), strict=True):
            row.normal_(generator=generator)
        return drawn.to(self._like)

    def whole(self, count: int, *shape: int) -> Tensor:
        """Return whole numbers from 0 to ``count − 1``, as indices."""
        return (self.uniform(*shape).float() * count).long().clamp_max(count - 1)

    def poisson(self, rates: Tensor) -> Tensor:
        """Return counts of these rates ``[images, …]``."""
        counts = rates.float().cpu()
        for row, generator in zip(counts.unbind(0), self._generators(), strict=True):
            row.copy_(torch.poisson(row, generator))
        return counts.to(self._like)

    def _generators(self) -> Iterator[Generator]:
        """One generator, seeded again for each image; two calls have nothing in common."""
        self._calls += 1
        name = f"{self._seed}/{self._calls}".encode()
        first = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
        generator = Generator()
        for number in self._index:
            yield generator.manual_seed((first + number * _STEP) % 2**64)
