"""An op: how a matrix acts on an input, row by row."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leanbayes.ops import LinearOp, Usage


@dataclass(frozen=True)
class ChannelMix(LinearOp):
    """A matrix over the channels of ``[batch, channels, positions]``: a 1 × 1 convolution."""

    channel_dim: ClassVar[int] = 1

    def __call__(self, x: Tensor, a: Tensor) -> Tensor:
        return torch.einsum("rc,bcp->brp", a, x)

    def usage(self, x: Tensor) -> Usage:
        return Usage(x.shape[0], reused=True)

    def is_batched(self, x: Tensor) -> bool:
        return x.ndim == 3

    def matrix(self, weight: Tensor) -> Tensor:
        return weight

    def unmatrix(self, matrix: Tensor) -> Tensor:
        return matrix

    def check_input(self, x: Tensor, channels: int) -> None:
        if x.ndim not in (2, 3) or x.shape[-2] != channels:
            raise ValueError(
                f"the input has shape {tuple(x.shape)}; give [batch, {channels}, positions]"
            )
