"""Noise of predictions: all samples of a layer's outputs at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes.kernels.k_tied import variance_factors
from leanbayes.kernels.native import LARGEST_RANK, library, pointer, seed, threads
from leanbayes.kernels.products import product

__all__ = ["Folded", "fold_k_tied", "fold_noise", "fold_scaled", "windows"]

_NARROW = 15
"""So few outputs have a kernel that multiplies by itself."""


class Folded(NamedTuple):
    """How many draws of how many examples, and how many examples share a number of noise."""

    samples: int
    examples: int
    sharing: int


def windows(fold: Folded, width: int, like: Tensor) -> Tensor:
    """Unit normals ``[samples, examples, width]``, each shared by so many examples.

    An example looks at a row of numbers through a window of its own, one part of a window further
    than the example before. So each window is white noise, two examples never meet the same number
    in the same place, and nothing is copied.

    Example:
        >>> e = windows(Folded(samples=1, examples=3, sharing=10), 20, torch.zeros(()))
        >>> e.shape, bool(e[0, 1, 0] == e[0, 0, 2])
        (torch.Size([1, 3, 20]), True)
    """
    step = max(-(-width // fold.sharing), 1)
    numbers = width + (fold.examples - 1) * step
    row = torch.randn(fold.samples, numbers, dtype=like.dtype, device=like.device)
    return row.unfold(1, width, step)


def fold_noise(mean: Tensor | None, bias: Tensor | None, variance: Tensor, fold: Folded) -> Tensor:
    """Draws ``[samples · examples, …]`` of ``mean + bias + √variance ∘ ε``.

    Rows of the law are those of all samples, or of one that serves them all. The memory of the
    variance is used up.

    Args:
        mean: ``[rows, …]``; ``None`` for zero.
        bias: of every row alike; ``None`` for zero.
        variance: ``[rows, …]``, not negative.
        fold: how many draws there are.
    """
    native = library(mean, bias, variance)
    if native is None:
        center = bias if mean is None else mean if bias is None else mean + bias
        return _spread(center, variance.sqrt_(), fold)
    n, given = _sizes(variance, fold)
    y = _room(variance, fold)
    tensors = map(pointer, (y, mean, bias, variance))
    sizes = fold.samples, fold.examples, n, given, fold.sharing
    native.fold_noise(*tensors, *sizes, seed(), threads(y.numel()))
    return y


def fold_scaled(
    x: Tensor, loc: Tensor | None, variance: Tensor, bias: Tensor | None, fold: Folded
) -> Tensor:
    """The same for outputs of independent normal weights.

    Args:
        x: inputs ``[rows, in]``.
        loc: means ``[out, in]``; ``None`` for zero.
        variance: variances ``[out, in]``.
        bias: ``[out]``; ``None`` for zero.
        fold: how many draws there are.
    """
    dense = x.contiguous(), loc, bias, variance
    native = library(*dense)
    if native is not None and len(variance) <= _NARROW:
        y = x.new_empty(fold.samples * fold.examples, len(variance))
        given = len(x) // max(fold.examples, 1)
        sizes = fold.samples, fold.examples, len(variance), given, fold.sharing, x.shape[1]
        native.fold_narrow(pointer(y), *map(pointer, dense), *sizes, seed(), threads(x.numel()))
        return y
    spread = product(x * x, variance)
    if loc is None:
        return fold_noise(None, bias, spread, fold)
    if native is None:
        return fold_noise(product(x, loc, bias), None, spread, fold)
    return fold_noise(product(x, loc), bias, spread, fold)


def fold_k_tied(
    x: Tensor, loc: Tensor, u: Tensor, v: Tensor, bias: Tensor | None, fold: Folded
) -> Tensor:
    """The same for outputs of weights with ``scale = uᵀ v``, see :func:`k_tied_local`."""
    dense, (rank, n) = (x.contiguous(), loc, bias, u.contiguous(), v.contiguous()), u.shape
    native = library(*dense)
    if native is not None and n <= _NARROW:
        return fold_scaled(x, loc, (u.t() @ v).square_(), bias, fold)
    if rank > LARGEST_RANK or native is None:
        p, q = variance_factors(u, v)
        return fold_noise(product(x, loc, bias), None, (x * x) @ p.t() @ q, fold)
    mean = product(x, loc)
    y, given = _room(mean, fold), len(x) // max(fold.examples, 1)
    tensors = map(pointer, (y, dense[0], mean, *dense[2:]))
    sizes = fold.samples, fold.examples, n, given, fold.sharing, x.shape[1], rank
    native.k_tied_fold(*tensors, *sizes, seed(), threads(y.numel()))
    return y


def _room(law: Tensor, fold: Folded) -> Tensor:
    """Memory for all draws: that of the law, if it is known of every sample."""
    rows = fold.samples * fold.examples
    return law if len(law) == rows else law.new_empty(rows, *law.shape[1:])


def _spread(center: Tensor | None, std: Tensor, fold: Folded) -> Tensor:
    """Noise around a center, by torch's own operations, in the memory of ``std`` if it has room."""
    n, given = _sizes(std, fold)
    shape = (given, fold.examples, *std.shape[1:])
    std = std.view(shape)
    e = windows(fold, n, std).view(fold.samples, fold.examples, *std.shape[2:])
    out = std if given == fold.samples else None
    if center is None:
        return torch.mul(std, e, out=out).flatten(0, 1)
    center = center.view(shape) if center.numel() == std.numel() else center
    return torch.addcmul(center, std, e, out=out).flatten(0, 1)


def _sizes(law: Tensor, fold: Folded) -> tuple[int, int]:
    """How many numbers a row has, and of how many samples the law is known."""
    rows = law.shape[0]
    return law.numel() // max(rows, 1), rows // max(fold.examples, 1)
