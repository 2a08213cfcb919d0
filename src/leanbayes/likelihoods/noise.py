"""How a likelihood gets a positive number such as a standard deviation: three ways."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.errors import require

__all__ = ["Noise", "check_noise", "learnt", "split"]

Noise = Literal["fixed", "learnt", "predicted"]


def check_noise(noise: str) -> None:
    """Raise unless it is one of the three ways."""
    require(
        noise in ("fixed", "learnt", "predicted"),
        f"noise is {noise!r}; it is 'fixed', 'learnt' or 'predicted'",
    )


def learnt(start: float, learn: bool) -> nn.Parameter | None:
    """The log of a positive number that is learnt; None if it is not."""
    return nn.Parameter(torch.tensor(math.log(start))) if learn else None


def split(
    outputs: Tensor, noise: str, start: float, log: nn.Parameter | None
) -> tuple[Tensor, Tensor]:
    """The outputs proper, and a positive number for each of them.

    Args:
        outputs: if the number is predicted, then raw ones stand beside the outputs proper in the
            last dimension, and zero means ``start``.
        noise: the way.
        start: the number, or where it starts.
        log: the parameter, if it is learnt.

    Example:
        >>> split(torch.tensor([3.0, 0.0]), "predicted", 0.5, None)
        (tensor([3.]), tensor([0.5000]))
    """
    if noise == "predicted":
        require(
            outputs.shape[-1] % 2 == 0,
            "predicted noise needs a mean and a scale for each target; the last dimension is "
            f"{outputs.shape[-1]}, an odd number",
        )
        proper, raw = outputs.chunk(2, -1)
        return proper, start * F.softplus(raw) / math.log(2) + 1e-6
    if log is not None:
        return outputs, log.exp().to(outputs.dtype).expand_as(outputs)
    return outputs, torch.full_like(outputs, start)
