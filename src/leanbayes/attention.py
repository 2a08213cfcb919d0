"""Multi-head attention whose four projections are random maps."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.layers import Affine

__all__ = ["Attention"]


class Attention(nn.Module):
    """Stands for :class:`torch.nn.MultiheadAttention`, with the same call and the same result.

    Args:
        template: the torch module it stands for; gives sizes and options.
        query: the query projection; ``key``, ``value`` and ``out`` alike.
        key: the key projection.
        value: the value projection.
        out: the output projection.
    """

    # nn.TransformerEncoderLayer looks at these two to leave its fused path, which would read the
    # weights past the posterior.
    in_proj_bias: None = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        template: nn.MultiheadAttention,
        query: Affine,
        key: Affine,
        value: Affine,
        out: Affine,
    ) -> None:
        super().__init__()
        self.embed_dim = template.embed_dim
        self.kdim = template.kdim
        self.vdim = template.vdim
        self.packed = bool(template._qkv_same_embed_dim)
        self.num_heads = template.num_heads
        self.dropout = float(template.dropout)
        self.batch_first = template.batch_first
        self.q_proj = query
        self.k_proj = key
        self.v_proj = value
        self.out_proj = out

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise ValueError("is_causal=True is a hint about attn_mask; pass attn_mask as well")
        batched = query.ndim == 3
        if not batched:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        mask = self._mask(query, key_padding_mask, attn_mask)
        y, weights = self._attend(query, key, value, mask, need_weights)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return y.squeeze(0), None if weights is None else weights.squeeze(0)
        return y if self.batch_first else y.transpose(0, 1).contiguous(), weights

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = (
            projection(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for projection, x in (
                (self.q_proj, query),
                (self.k_proj, key),
                (self.v_proj, value),
            )
        )
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            weights = F.dropout(weights, dropout)
            heads = weights @ v
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        y: Tensor = self.out_proj(heads.transpose(1, 2).flatten(2))
        return y, weights

    def _mask(
        self, query: Tensor, padding: Tensor | None, attention: Tensor | None
    ) -> Tensor | None:
        """Both masks as one additive ``[batch or 1, heads or 1, target, source]``."""
        parts: list[Tensor] = []
        if padding is not None:
            parts.append(_additive(padding, query)[:, None, None, :])
        if attention is not None:
            additive = _additive(attention, query)
            heads = (-1, self.num_heads)
            parts.append(additive.unflatten(0, heads) if additive.ndim == 3 else additive)
        return sum(parts[1:], parts[0]) if parts else None


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """A boolean mask (true: not seen) as numbers to be added to the scores."""
    if mask.dtype != torch.bool:
        return mask
    return like.new_zeros(mask.shape).masked_fill(mask, -math.inf)
