"""Bilinear layers: linear in the outer product of two inputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from leanbayes.layers.affine import Affine
from leanbayes.layers.base import Layer, register_layer
from leanbayes.layers.layer_spec import Maker
from leanbayes.ops import Linear
from leanbayes.precision import wide, wide_dtype


@dataclass(frozen=True)
class OuterProduct(Linear):
    """A bilinear form: a matrix times the flattened outer product of two inputs."""

    sizes: tuple[int, int]

    def matrix(self, weight: Tensor) -> Tensor:
        return weight.flatten(1)

    def unmatrix(self, matrix: Tensor) -> Tensor:
        return matrix.unflatten(-1, self.sizes)

    def __call__(self, x: Tensor, a: Tensor) -> Tensor:
        """The outer product of halves is not a half: it may be as large as the square of one."""
        return super().__call__(x, a.to(x.dtype))


@register_layer(nn.Bilinear)
class Bilinear(Layer):
    """``x₁ᵀ A x₂ + b`` with random ``A``."""

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
        product = wide(input1).unsqueeze(-1) * wide(input2).unsqueeze(-2)
        y: Tensor = self.affine(product.flatten(-2))
        return y.to(input1.dtype) if input1.dtype != wide_dtype(input1.dtype) else y
