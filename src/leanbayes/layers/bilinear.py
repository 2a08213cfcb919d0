"""Bilinear layers: linear in the outer product of two inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from leanbayes.layers.affine import Affine
from leanbayes.layers.base import Layer, register_layer
from leanbayes.layers.choice import Maker
from leanbayes.ops import Linear

__all__ = ["Bilinear", "OuterProduct"]


@dataclass(frozen=True)
class OuterProduct(Linear):
    """A bilinear form: a matrix times the flattened outer product of two inputs.

    Args:
        sizes: how many features the two inputs have.

    Example:
        >>> OuterProduct((3, 2)).matrix(torch.zeros(4, 3, 2)).shape
        torch.Size([4, 6])
    """

    sizes: tuple[int, int]

    def matrix(self, weight: Tensor) -> Tensor:
        return weight.flatten(1)

    def unmatrix(self, matrix: Tensor) -> Tensor:
        return matrix.unflatten(-1, self.sizes)


@register_layer(nn.Bilinear)
class Bilinear(Layer):
    """``x₁ᵀ A x₂ + b`` with random ``A``.

    Args:
        affine: acts on the outer product ``x₁ x₂ᵀ``, flattened.
    """

    def __init__(self, affine: Affine) -> None:
        super().__init__()
        self.affine = affine

    @classmethod
    def from_torch(cls, module: nn.Bilinear, make: Maker) -> Self:
        op = OuterProduct((module.in1_features, module.in2_features))
        return cls(Affine.of(module.weight, module.bias, op, make))

    def torch_tensors(self, member: int | None) -> Mapping[str, Tensor | None]:
        return self.affine.torch_tensors(member)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return self.affine((input1.unsqueeze(-1) * input2.unsqueeze(-2)).flatten(-2))
