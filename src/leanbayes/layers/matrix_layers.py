"""Layers of one matrix that are not plain linear: convolutions, tables of vectors, bilinear."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from leanbayes.errors import require
from leanbayes.layers.base import Layer, register_layer
from leanbayes.layers.layer_spec import Maker
from leanbayes.layers.random_map import Affine
from leanbayes.ops import Conv, ConvTranspose, Linear, Lookup
from leanbayes.precision import wide, wide_dtype

_Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


@register_layer(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class Convolution(Affine):
    """A random convolution."""

    @classmethod
    def op_of(cls, module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> Conv:
        window = (module.kernel_size, module.stride, module.padding, module.dilation)
        return Conv(*window, module.groups, module.padding_mode)


@register_layer(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
class TransposedConvolution(Affine):
    """A random transposed convolution, which can be asked for an output of some size."""

    op: ConvTranspose

    @classmethod
    def op_of(cls, module: _Transposed) -> ConvTranspose:
        window = (module.kernel_size, module.stride, module.padding, module.dilation)
        return ConvTranspose(*window, module.groups, module.output_padding)

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        op = self.op if output_size is None else self.op.with_output_size(x, output_size)
        return self.transform(x, op)


@register_layer(nn.Embedding)
class Embedding(Affine):
    """A random table of vectors."""

    @classmethod
    def op_of(cls, module: nn.Embedding) -> Lookup:
        return Lookup(module.padding_idx)

    @classmethod
    def refuse(cls, module: nn.Embedding) -> None:
        refuse_table_options(module)
        padding = module.padding_idx
        require(
            padding is None or module.weight.is_meta or not bool(module.weight[padding].any()),
            "the vector of its padding index is not zero; set it to zero or exclude the layer",
        )


def refuse_table_options(module: nn.Embedding | nn.EmbeddingBag) -> None:
    """Raise a sentence if a table has options that act on its weights or their gradients."""
    require(
        module.max_norm is None and not module.sparse and not module.scale_grad_by_freq,
        "an embedding with max_norm, sparse or scale_grad_by_freq has no Bayesian counterpart; "
        "exclude it",
    )


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


@register_layer(nn.EmbeddingBag)
class EmbeddingBag(Layer):
    """The (weighted) sum or the mean of the vectors of each bag of indices.

    Vectors are looked up first and added then, so that a call needs memory for all of them.
    """

    mode: str
    padding_idx: int | None
    include_last_offset: bool

    def __init__(self, table: Affine) -> None:
        super().__init__()
        self.table = table

    @classmethod
    def refuse(cls, module: nn.EmbeddingBag) -> None:
        refuse_table_options(module)
        require(
            module.mode in ("sum", "mean"),
            f"the {module.mode} of random vectors is not linear in them; use mode='sum' or "
            "'mean', or exclude it",
        )

    @classmethod
    def from_torch(cls, module: nn.EmbeddingBag, make: Maker) -> Self:
        return cls(Affine.of(module.weight, None, Lookup(module.padding_idx), make))

    def torch_tensors(self, member: int | None) -> Mapping[str, Tensor | None]:
        return self.table.torch_tensors(member)

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        require(
            per_sample_weights is None or self.mode == "sum",
            f"per_sample_weights are given to a {self.mode}; they need mode='sum'",
        )
        require(
            (offsets is None) == (input.ndim == 2),
            f"the input has shape {tuple(input.shape)}; give bags [batch, indices], or a list of "
            "indices and offsets that say where each bag begins",
        )
        ones = torch.ones_like(input, dtype=torch.bool)
        share = ones if per_sample_weights is None else per_sample_weights
        if offsets is not None:
            input, share = self._bags(input, offsets), self._bags(share, offsets)
        if self.padding_idx is not None:
            share = share.masked_fill(input == self.padding_idx, 0)
        vectors: Tensor = self.table(input)
        share = share.to(vectors.dtype)
        if self.mode == "mean":
            share = share / share.sum(1, keepdim=True).clamp_min(1)
        return (share.unsqueeze(-1) * vectors).sum(1)

    def _bags(self, values: Tensor, offsets: Tensor) -> Tensor:
        """Return a list cut at the offsets, each part padded with zeros: ``[batch, indices]``."""
        bounds = offsets.tolist() + ([] if self.include_last_offset else [len(values)])
        require(bounds[0] == 0, f"the first offset is {bounds[0]}; bags begin at index 0")
        require(
            bounds == sorted(bounds) and bounds[-1] <= len(values),
            f"offsets are {offsets.tolist()}; they must not fall, nor exceed {len(values)} indices",
        )
        parts = [values[start:end] for start, end in itertools.pairwise(bounds)]
        return pad_sequence(parts, batch_first=True) if parts else values.reshape(0, 0)
