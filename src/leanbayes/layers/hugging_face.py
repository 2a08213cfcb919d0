"""Layers of Hugging Face's transformers, known by name: the library need not be installed."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from leanbayes.layers.affine import Affine
from leanbayes.layers.base import register_layer
from leanbayes.ops import Linear


@dataclass(frozen=True)
class TransposedLinear(Linear):
    """A linear layer whose weight is stored as ``[in, out]``.

    Example:
        >>> TransposedLinear().matrix(torch.zeros(3, 2)).shape
        torch.Size([2, 3])
    """

    def matrix(self, weight: Tensor) -> Tensor:
        return weight.t()

    def unmatrix(self, matrix: Tensor) -> Tensor:
        return matrix.mT


@register_layer("transformers.pytorch_utils.Conv1D")
class Conv1D(Affine):
    """The linear layer of GPT-2, whose weight is ``[in, out]``."""

    @classmethod
    def op_of(cls, module: Any) -> TransposedLinear:
        return TransposedLinear()
