"""Layers of Hugging Face's transformers, known by name: the library need not be installed."""

from __future__ import annotations

from typing import Any

from leanbayes.layers.affine import Affine
from leanbayes.layers.base import register_layer
from leanbayes.ops import TransposedLinear

__all__ = ["Conv1D"]


@register_layer("transformers.pytorch_utils.Conv1D")
class Conv1D(Affine):
    """The linear layer of GPT-2, whose weight is ``[in, out]``."""

    @classmethod
    def op_of(cls, module: Any) -> TransposedLinear:
        return TransposedLinear()
