"""Random crops and flips of a whole batch of images at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from leanbayes.errors import choose
from leanbayes.lab.data.dataset import Dataset


class Augmentation(Protocol):
    """Changes a batch ``[batch, channels, height, width]`` at random."""

    def __call__(self, x: Tensor, generator: Generator) -> Tensor: ...


@dataclass(frozen=True)
class Flip:
    """Mirrors every image left to right with probability one half [matrix normal, section 5.3].

    Args:
        shared: one coin for the whole batch.
    """

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

    Example:
        >>> x = torch.ones(2, 3, 8, 8)
        >>> PadCropFlip(pad=2)(x, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 8, 8])
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
    """An augmentation by its name; borders are black as in the raw images.

    Args:
        name: ``"none"``, ``"flip"``, ``"crop-flip"``, or ``"crop-flip-shared"``: one draw a batch.
        dataset: what it is for.
        pad: pixels added on each side before the crop.
    """
    makers: dict[str, Callable[[], Augmentation | None]] = {
        "none": lambda: None,
        "flip": Flip,
        "crop-flip": lambda: PadCropFlip(pad, dataset.black),
        "crop-flip-shared": lambda: PadCropFlip(pad, dataset.black, shared=True),
    }
    return choose("augmentation", name, makers)()
