"""Layers: one file a kind, each made from a torch layer and made into it again.

A new kind is one subclass of :class:`Layer` and one call of :func:`register_layer`.
"""

from leanbayes.layers.affine import Affine, Convolution, Embedding, TransposedConvolution
from leanbayes.layers.attention import Attention
from leanbayes.layers.base import KINDS, Layer, is_bayesian, is_convertible, register_layer
from leanbayes.layers.bilinear import Bilinear
from leanbayes.layers.cells import Cell
from leanbayes.layers.embedding_bag import EmbeddingBag
from leanbayes.layers.hugging_face import Conv1D
from leanbayes.layers.layer_spec import LayerSpec, Maker
from leanbayes.layers.random_map import RandomMap
from leanbayes.layers.recurrent import Recurrent

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
