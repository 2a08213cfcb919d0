"""Layers: kinds that are made from a torch layer and made into it again.

A new kind is one subclass of :class:`Layer` and one call of :func:`register_layer`.
"""

from leanbayes.layers.base import KINDS, Layer, is_bayesian, is_convertible, register_layer
from leanbayes.layers.layer_spec import LayerSpec, Maker
from leanbayes.layers.matrix_layers import (
    Bilinear,
    Convolution,
    Embedding,
    EmbeddingBag,
    TransposedConvolution,
)
from leanbayes.layers.random_map import Affine, RandomMap
from leanbayes.layers.recurrent import Cell, Recurrent
from leanbayes.layers.transformers import Attention, Conv1D
