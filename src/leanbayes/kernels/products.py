"""Products of inputs with weights, by whichever of torch's libraries is faster."""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.torch_private import is_observed, onednn_linear

_NARROW = 16
"""With fewer rows, inputs or outputs oneDNN may be slower."""
_LARGE = 4 * 10**6
"""With fewer multiplications it gains nothing."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x weightᵀ + bias``, for use where no gradient is recorded.

    Where torch has MKL, oneDNN takes large products, for which it needs less time.

    Args:
        x: ``[batch, in]``.
        weight: ``[out, in]``; the transpose of a contiguous matrix is as good.
        bias: ``[out]``.
    """
    single = x.dtype == weight.dtype == torch.float32 and x.is_cpu and weight.is_cpu
    linear = _onednn() if single and _is_large(len(x), weight) and _may_differ() else None
    if linear is None:
        return F.linear(x, weight, bias)
    if not weight.t().is_contiguous():
        weight = weight.contiguous()
    return linear(x.contiguous(), weight, bias, "none", [], "")


def products(rows: int, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return :func:`product` with one float32 matrix, for contiguous inputs of so many rows."""
    weight = weight.contiguous()
    linear = _onednn() if _is_large(rows, weight) and _may_differ() else None
    if linear is None:
        return lambda x: F.linear(x, weight)
    return lambda x: linear(x, weight, None, "none", [], "")


def _is_large(rows: int, weight: Tensor) -> bool:
    return rows * weight.numel() >= _LARGE and min(rows, *weight.shape) >= _NARROW


def _may_differ() -> bool:
    """Whether nobody asks what oneDNN does not answer (gradients, FLOPs), or forbids its use."""
    seen = torch.is_grad_enabled() or is_observed()
    return not seen and bool(torch.backends.mkldnn.enabled)


@cache
def _onednn() -> Callable[..., Tensor] | None:
    """Return ``linear`` of oneDNN, if torch was built with both libraries."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return None
    return onednn_linear()
