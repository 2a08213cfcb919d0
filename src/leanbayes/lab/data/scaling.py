"""Scalings of inputs and targets, and those with a name; statistics are of training examples."""

from collections.abc import Callable

import torch
from torch import Tensor


class Scaling:
    """Turns raw numbers into what a network sees: ``(raw − shift) / scale``, in float32.

    Args:
        shift: a number, or a tensor that broadcasts with one example.
        scale: the same, positive.

    Example:
        >>> symmetric = Scaling(127.5, 127.5)
        >>> symmetric(torch.tensor([0, 255], dtype=torch.uint8))
        tensor([-1.,  1.])
        >>> symmetric.inverse(torch.tensor([-1.0, 1.0]))
        tensor([  0., 255.])
    """

    def __init__(self, shift: float | Tensor = 0.0, scale: float | Tensor = 1.0) -> None:
        self.shift = torch.as_tensor(shift, dtype=torch.float64)
        self.scale = torch.as_tensor(scale, dtype=torch.float64)
        if not bool((self.scale > 0).all()):
            raise ValueError("a scale must be positive; use 1 where the data do not vary")
        self._shift, self._gain = self.shift.float(), (1 / self.scale).float()
        self._moves = bool((self.shift != 0).any())
        self._stretches = bool((self.scale != 1).any())

    def __call__(self, raw: Tensor) -> Tensor:
        if raw.dtype == torch.float64:
            return ((raw - self.shift) / self.scale).float()
        x = raw.clone() if raw.dtype == torch.float32 else raw.float()
        if self._moves:
            x.sub_(self._shift.to(x.device))
        return x.mul_(self._gain.to(x.device)) if self._stretches else x

    @property
    def is_identity(self) -> bool:
        """Whether numbers stay as they are."""
        return not (self._moves or self._stretches)

    def inverse(self, x: Tensor) -> Tensor:
        """The raw numbers of these inputs."""
        return (x * self.scale + self.shift).to(x.dtype)

    def __repr__(self) -> str:
        return f"Scaling(shift={_short(self.shift)}, scale={_short(self.scale)})"


def _short(value: Tensor) -> str:
    return f"{float(value):g}" if value.ndim == 0 else f"tensor of shape {tuple(value.shape)}"


def _channel(train: Tensor, peak: int) -> Scaling:
    """From counts of the 256 values: exact, and no float copy of all images is made."""
    values = torch.arange(256, dtype=torch.float64)
    counts = torch.stack([torch.bincount(c.flatten(), minlength=256) for c in train.unbind(1)])
    share = counts.double() / counts.sum(1, keepdim=True)
    mean = share @ values
    std = (share * (values - mean.unsqueeze(1)).square()).sum(1).sqrt()
    return Scaling(mean.view(-1, 1, 1), torch.where(std > 0, std, 1.0).view(-1, 1, 1))


def _pixel_mean(train: Tensor, peak: int) -> Scaling:
    return Scaling(train.sum(0, dtype=torch.int64).double() / len(train), float(peak))


def _constants(*pair: tuple[float, float, float]) -> Callable[[Tensor, int], Scaling]:
    """By a mean and a standard deviation of each channel that are known before."""

    def constants(train: Tensor, peak: int) -> Scaling:
        return Scaling(*(peak * torch.tensor(pair, dtype=torch.float64).view(2, 3, 1, 1)))

    return constants


def _standard(train: Tensor) -> Scaling:
    """A column that does not vary, but for rounding, is only shifted, unless it is huge."""
    std, mean = torch.std_mean(train.double(), 0, correction=0)
    rounding = 1e-10 * mean.abs()
    return Scaling(mean, torch.where(std > rounding, std, rounding.clamp_min(1.0)))


CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
IMAGE_SCALINGS: dict[str, tuple[Callable[[Tensor, int], Scaling], str]] = {
    "raw": (lambda train, peak: Scaling(), "pixels from 0 to {peak}"),
    "unit": (lambda train, peak: Scaling(0.0, peak), "pixels in [0, 1]"),
    "symmetric": (lambda train, peak: Scaling(peak / 2, peak / 2), "pixels in [-1, 1]"),
    "pixel-mean": (_pixel_mean, "pixels in [0, 1] less their mean over the training images"),
    "channel": (_channel, "mean 0 and standard deviation 1 in each channel of the training images"),
    "cifar": (
        _constants(CIFAR_MEAN, (0.2470, 0.2435, 0.2616)),
        "pixels in [0, 1] less (.4914, .4822, .4465), over (.2470, .2435, .2616)",
    ),
    "cifar-2020": (
        _constants(CIFAR_MEAN, (0.2023, 0.1994, 0.2010)),
        "pixels in [0, 1] less (.4914, .4822, .4465), over (.2023, .1994, .2010)",
    ),
    "imagenet": (
        _constants((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "pixels in [0, 1] less (.485, .456, .406), over (.229, .224, .225)",
    ),
}
"""Scalings of pixels, and what a report says of them.

``symmetric`` is the MLP of the k-tied paper, ``pixel-mean`` the ResNet of its supplement, ``raw``
the VGG of the variance-networks paper, ``cifar-2020`` and ``cifar`` the constants in the code of
rank-1 BNNs when it was published and now, ``imagenet`` what most networks on ImageNet use.
"""

TABLE_SCALINGS: dict[str, tuple[Callable[[Tensor], Scaling], str]] = {
    "standard": (_standard, "mean 0 and standard deviation 1 over the training examples"),
    "raw": (lambda train: Scaling(), "as they are"),
}
"""Scalings of other numbers, and of real targets."""
