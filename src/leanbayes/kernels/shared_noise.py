"""Noise of predictions: all samples of outputs at once, with noise that examples share."""

from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes.kernels.native import library, pointer, seed, threads

NARROW = 15
"""So few outputs have a kernel that multiplies by itself."""


class Sharing(NamedTuple):
    """How many draws of how many examples, and how many examples share a number of noise."""

    samples: int
    examples: int
    each: int


def windows(sharing: Sharing, width: int, like: Tensor) -> Tensor:
    """Return unit normals ``[samples, examples, width]``, each shared by so many examples.

    An example looks at a row of numbers through a separate window, one part of a window further
    than the example before. So each window is white noise, two examples never meet the same number
    in the same place, and nothing is copied.
    """
    step = max(-(-width // sharing.each), 1)
    numbers = width + (sharing.examples - 1) * step
    row = torch.randn(sharing.samples, numbers, dtype=like.dtype, device=like.device)
    return row.unfold(1, width, step)


def shared_noise(
    mean: Tensor | None, bias: Tensor | None, variance: Tensor, sharing: Sharing
) -> Tensor:
    """Return draws ``[samples · examples, …]`` of ``mean + bias + √variance ∘ ε``.

    Rows of the law are those of all samples, or of one that serves them all. The memory of the
    variance is used up.

    Args:
        mean: ``[rows, …]``; ``None`` for zero.
        bias: bias of every row alike; ``None`` for zero.
        variance: ``[rows, …]``, not negative.
        sharing: number of draws.
    """
    native = library(mean, bias, variance)
    if native is None:
        center = bias if mean is None else mean if bias is None else mean + bias
        return _spread(center, variance.sqrt_(), sharing)
    n, given = _sizes(variance, sharing)
    y = room_for(variance, sharing)
    tensors = map(pointer, (y, mean, bias, variance))
    sizes = sharing.samples, sharing.examples, n, given, sharing.each
    native.fold_noise(*tensors, *sizes, seed(), threads(y.numel()))
    return y


def narrow_samples(
    x: Tensor, loc: Tensor | None, variance: Tensor, bias: Tensor | None, sharing: Sharing
) -> Tensor | None:
    """Draw a few outputs by the kernel's own product; ``None`` without the library."""
    dense = x.contiguous(), loc, bias, variance
    native, n = library(*dense), len(variance)
    if native is None or n > NARROW:
        return None
    y = x.new_empty(sharing.samples * sharing.examples, n)
    given = len(x) // max(sharing.examples, 1)
    sizes = sharing.samples, sharing.examples, n, given, sharing.each, x.shape[1]
    native.fold_narrow(pointer(y), *map(pointer, dense), *sizes, seed(), threads(x.numel()))
    return y


def room_for(law: Tensor, sharing: Sharing) -> Tensor:
    """Return memory for all draws: that of the law, if it is known of every sample."""
    rows = sharing.samples * sharing.examples
    return law if len(law) == rows else law.new_empty(rows, *law.shape[1:])


def _spread(center: Tensor | None, std: Tensor, sharing: Sharing) -> Tensor:
    """Add noise around a center, in the memory of ``std`` if that is large enough."""
    n, given = _sizes(std, sharing)
    shape = (given, sharing.examples, *std.shape[1:])
    std = std.view(shape)
    e = windows(sharing, n, std).view(sharing.samples, sharing.examples, *std.shape[2:])
    out = std if given == sharing.samples else None
    if center is None:
        return torch.mul(std, e, out=out).flatten(0, 1)
    center = center.view(shape) if center.numel() == std.numel() else center
    return torch.addcmul(center, std, e, out=out).flatten(0, 1)


def _sizes(law: Tensor, sharing: Sharing) -> tuple[int, int]:
    """Return how many numbers a row has, and of how many samples the law is known."""
    rows = law.shape[0]
    return law.numel() // max(rows, 1), rows // max(sharing.examples, 1)
