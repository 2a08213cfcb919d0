"""Half precision: parameters and inputs may have it, laws and divergences never do.

Squares, products of scales and sums over weights leave the range of float16 and the three digits
of bfloat16. So distributions have float32 tensors, and autocast is off while they are sampled and
compared. Only a drawn weight and an output are rounded.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 instead of a half; any other dtype itself."""
    return torch.float32 if dtype in HALVES else dtype


def wide(tensor: Tensor) -> Tensor:
    """Return the same numbers as float32 if they are halves."""
    return tensor.float() if tensor.dtype in HALVES else tensor


_AS_IT_IS = nullcontext()


def _autocasts(device: torch.device) -> bool:
    kind = device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def is_rounded(x: Tensor) -> bool:
    """Return whether torch would compute with ``x`` in half precision (autocast too)."""
    return x.dtype in HALVES or _autocasts(x.device)


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return a ``with`` block without autocast; nothing is entered where there is none."""
    return torch.autocast(device.type, enabled=False) if _autocasts(device) else _AS_IT_IS


def output_dtype(x: Tensor, weight: torch.dtype) -> torch.dtype:
    """Return the dtype of torch's product of ``x`` and such a weight, with autocast."""
    if x.is_floating_point() and x.dtype != torch.float64 and _autocasts(x.device):
        return torch.get_autocast_dtype(x.device.type)
    return weight
