"""First weights of the papers' networks by rule: each fills a parameter in place."""

import torch
from torch import Tensor, nn


def normal(std: float, tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Normal around zero."""
    nn.init.normal_(tensor, 0.0, std, generator)


def glorot_uniform(tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Uniform with variance 2 / (fan-in + fan-out)."""
    nn.init.xavier_uniform_(tensor, generator=generator)


def orthogonal(tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Orthonormal columns (or rows, if there are fewer of them)."""
    nn.init.orthogonal_(tensor, generator=generator)


def unit_forget_bias(tensor: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Zero, but one for the forget gate of an LSTM, which comes second."""
    nn.init.zeros_(tensor)
    nn.init.ones_(tensor.chunk(4)[1])
