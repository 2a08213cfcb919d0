"""The mean weight as other code sees it: it may look at its shape, and is warned if it computes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["MeanWeight"]

_LOOKS = frozenset(
    {
        *(getattr(Tensor, name).__get__ for name in ("device", "dtype", "is_cuda", "is_leaf")),
        *(getattr(Tensor, name).__get__ for name in ("is_meta", "is_sparse", "layout", "ndim")),
        *(getattr(Tensor, name).__get__ for name in ("requires_grad", "shape")),
        *(Tensor.dim, Tensor.element_size, Tensor.is_contiguous, Tensor.is_floating_point),
        *(Tensor.numel, Tensor.size, Tensor.stride, Tensor.__len__),
    }
)
"""What says nothing about the numbers of a tensor."""


class MeanWeight(Tensor):
    """A posterior mean that warns once code computes with it; results are ordinary tensors.

    Code of other libraries reads ``layer.weight.dtype`` or ``.device`` before it calls the layer,
    and that is no mistake.

    Example:
        >>> weight = torch.zeros(2, 3).as_subclass(MeanWeight)
        >>> weight.dtype, weight.shape
        (torch.float32, torch.Size([2, 3]))
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func not in _LOOKS:
            warnings.warn(
                "weight is the posterior mean here: code that computes with it has no noise. Call "
                "the layer, or read weight within lb.held(model); mean_weight is the mean",
                stacklevel=2,
            )
        with torch.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
