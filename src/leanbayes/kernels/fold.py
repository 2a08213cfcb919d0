"""Noise of predictions: all samples of a layer's outputs at once, by native kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.kernels.native import LARGEST_RANK, library, loaded, pointer, seed, threads

__all__ = ["Folded", "can_fold", "fold_k_tied", "fold_noise"]


class Folded(NamedTuple):
    """How many draws of how many examples, and how many examples share a number of noise."""

    samples: int
    examples: int
    sharing: int


def can_fold(*tensors: Tensor | None) -> bool:
    """Whether there are kernels for numbers of this type; ask before products are made."""
    given = [t for t in tensors if t is not None]
    return library() is not None and all(t.dtype is torch.float32 and t.is_cpu for t in given)


def fold_noise(
    mean: Tensor | None, bias: Tensor | None, variance: Tensor, fold: Folded
) -> Tensor | None:
    """Draws ``[samples · examples, …]`` of ``mean + bias + √variance ∘ ε``.

    Rows of the law are those of all samples, or of one that serves them all. Only natively, for
    float32 on a CPU; ``None`` elsewhere.

    Args:
        mean: ``[rows, …]``; ``None`` for zero.
        bias: of every row alike; ``None`` for zero.
        variance: ``[rows, …]``.
        fold: how many draws there are.
    """
    if library(mean, bias, variance) is None:
        return None
    n, given = _sizes(variance, fold)
    y = variance.new_empty(fold.samples * fold.examples, *variance.shape[1:])
    tensors = map(pointer, (y, mean, bias, variance))
    sizes = fold.samples, fold.examples, n, given, fold.sharing
    loaded().fold_noise(*tensors, *sizes, seed(), threads(y.numel()))
    return y


def fold_k_tied(
    x: Tensor, loc: Tensor, u: Tensor, v: Tensor, bias: Tensor | None, fold: Folded
) -> Tensor | None:
    """The same for outputs of weights with ``scale = uᵀ v``, see :func:`k_tied_local`."""
    rank = u.shape[0]
    if rank > LARGEST_RANK or not can_fold(x, loc, u, v):
        return None
    mean = F.linear(x, loc, bias).contiguous()
    dense = x.contiguous(), mean, u.contiguous(), v.contiguous()
    n, given = _sizes(mean, fold)
    y = mean if given == fold.samples else mean.new_empty(fold.samples * fold.examples, n)
    sizes = fold.samples, fold.examples, n, given, fold.sharing, x.shape[1], rank
    loaded().k_tied_fold(pointer(y), *map(pointer, dense), *sizes, seed(), threads(y.numel()))
    return y


def _sizes(law: Tensor, fold: Folded) -> tuple[int, int]:
    """How many numbers a row has, and of how many samples the law is known."""
    rows = law.shape[0]
    return law.numel() // max(rows, 1), rows // max(fold.examples, 1)
