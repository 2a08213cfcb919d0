"""Layers: kinds that are made from a torch layer and made into it again.

A new kind is one subclass of :class:`Layer` and one call of :func:`register_layer`.
"""

from leanbayes.layers.affine import (
    Affine,
    Bilinear,
    Convolution,
    Embedding,
    EmbeddingBag,
    TransposedConvolution,
)
from leanbayes.layers.attention import Attention
from leanbayes.layers.base import KINDS, Layer, is_bayesian, is_convertible, register_layer
from leanbayes.layers.hugging_face import Conv1D
from leanbayes.layers.layer_spec import LayerSpec, Maker
from leanbayes.layers.random_map import RandomMap
from leanbayes.layers.recurrent import Cell, Recurrent

__all__ = [
    "KINDS",
    "Affine",
    "Attention",
    "Bilinear",
    "Cell",
    "Conv1D",
    "Convolution",
    "Embedding",
    "EmbeddingBag",
    "Layer",
    "LayerSpec",
    "Maker",
    "RandomMap",
    "Recurrent",
    "TransposedConvolution",
    "is_bayesian",
    "is_convertible",
    "register_layer",
]
