"""Posterior mean as ``layer.weight``: code may read its shape, and is warned if it computes."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_HARMLESS = "device dtype is_cuda is_leaf is_meta is_sparse layout ndim requires_grad shape dim "
_HARMLESS += "element_size is_contiguous is_floating_point numel size stride __len__"
"""Attributes and methods that do not depend on the numbers of a tensor."""


class MeanWeight(Tensor):
    """A posterior mean that warns when code computes with it; results are ordinary tensors.

    Example:
        >>> weight = torch.zeros(2, 3).as_subclass(MeanWeight)
        >>> weight.dtype, weight.shape
        (torch.float32, torch.Size([2, 3]))
    """

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        attribute = getattr(func, "__self__", func)
        if getattr(attribute, "__name__", "") not in _HARMLESS.split():
            warnings.warn(
                "weight is the posterior mean here: code that computes with it has no noise. Call "
                "the layer, or read weight within lb.held(model); mean_weight is the mean",
                stacklevel=2,
            )
        with torch.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
