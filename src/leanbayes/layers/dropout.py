"""Dropout layers that draw in training and in eval mode."""

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

FUNCTIONS: Mapping[type[nn.Module], Callable[..., Tensor]] = {
    nn.Dropout: F.dropout,
    nn.Dropout1d: F.dropout1d,
    nn.Dropout2d: F.dropout2d,
    nn.Dropout3d: F.dropout3d,
    nn.AlphaDropout: F.alpha_dropout,
    nn.FeatureAlphaDropout: F.feature_alpha_dropout,
}
DROPOUT = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)
"""Torch's dropout layers."""


class MCDropout(nn.Module):
    """A dropout layer that draws in training and in eval mode alike."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.kind = type(layer)
        self.p = layer.p

    def forward(self, x: Tensor) -> Tensor:
        return FUNCTIONS[self.kind](x, self.p, training=True)

    def extra_repr(self) -> str:
        return f"{self.kind.__name__}, p={self.p}"
