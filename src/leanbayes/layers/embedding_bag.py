"""Bags of embeddings: sums and means of random vectors."""

import itertools
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from leanbayes.errors import require
from leanbayes.layers.affine import Affine, refuse_table_options
from leanbayes.layers.base import Layer, register_layer
from leanbayes.layers.layer_spec import Maker
from leanbayes.ops import Lookup


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
