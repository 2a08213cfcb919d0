"""A layer kind: what a torch layer of one's own becomes, and how it comes back."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

import leanbayes as lb
from leanbayes.layers import Maker


class EqualizedLinear(nn.Linear):
    """A linear layer whose output is scaled by ``1 / √in`` instead of its weights."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / self.in_features**0.5


@lb.extend.register_layer(EqualizedLinear)
class RandomEqualizedLinear(lb.extend.Layer):
    """The same with a random weight matrix."""

    def __init__(self, linear: lb.extend.Affine) -> None:
        super().__init__()
        self.linear = linear

    @classmethod
    def from_torch(cls, module: EqualizedLinear, make: Maker) -> RandomEqualizedLinear:
        return cls(lb.extend.Affine.from_torch(module, make))

    def torch_tensors(self, member: int | None) -> Mapping[str, Tensor | None]:
        return self.linear.torch_tensors(member)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y / x.shape[-1] ** 0.5
