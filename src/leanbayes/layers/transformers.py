"""Transformers: attention of random projections, torch's encoders, Hugging Face's models."""

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.layers.base import Layer, register_layer
from leanbayes.layers.dropout import MCDropout
from leanbayes.layers.layer_spec import Maker
from leanbayes.layers.random_map import Affine, RandomMap, point_bias
from leanbayes.ops import Linear


@register_layer(nn.MultiheadAttention)
class Attention(Layer):
    """Stands for :class:`torch.nn.MultiheadAttention`, with the same call and the same result."""

    num_heads: int
    dropout: float
    batch_first: bool

    # nn.TransformerEncoderLayer looks at these two to leave its fused path, which would read the
    # weights past the posterior.
    in_proj_bias: None = None
    _qkv_same_embed_dim = False

    def __init__(
        self, query: Affine, key: Affine, value: Affine, out: Affine, *, packed: bool
    ) -> None:
        super().__init__()
        self.q_proj = query
        self.k_proj = key
        self.v_proj = value
        self.out_proj = out
        self.packed = packed

    @classmethod
    def refuse(cls, module: nn.MultiheadAttention) -> None:
        require(
            module.bias_k is None and not module.add_zero_attn,
            "attention with bias_k, bias_v or add_zero_attn has no Bayesian counterpart; "
            "exclude it",
        )
        require(
            isinstance(module.out_proj, nn.Linear),
            f"out_proj must be nn.Linear, got {type(module.out_proj).__name__}; exclude it",
        )

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, make: Maker) -> Self:
        packed = module.in_proj_weight is not None
        separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        weights = _thirds(module.in_proj_weight) if packed else separate
        biases = (None,) * 3 if module.in_proj_bias is None else _thirds(module.in_proj_bias)
        out = module.out_proj
        pairs = [*zip(weights, biases, strict=True), (out.weight, out.bias)]
        return cls(*(Affine.of(*pair, Linear(), make) for pair in pairs), packed=packed)

    def torch_tensors(self, member: int | None) -> Mapping[str, Tensor | None]:
        parts = {"q": self.q_proj, "k": self.k_proj, "v": self.v_proj}
        weights = {f"{name}_proj_weight": part.point(member) for name, part in parts.items()}
        biases = [point_bias(p.bias, member) for p in parts.values() if p.bias is not None]
        out = {f"out_proj.{n}": t for n, t in self.out_proj.torch_tensors(member).items()}
        inputs = {"in_proj_weight": _joined(list(weights.values()))} if self.packed else weights
        return {**inputs, "in_proj_bias": _joined(biases), **out}

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
        projected = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in projected)
        dropout, weights = self.dropout if self.training else 0.0, None
        if need_weights:
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            weights = F.dropout(weights, dropout)
            heads = weights @ v
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        return self.out_proj(heads.transpose(1, 2).flatten(2)), weights

    def _mask(
        self, query: Tensor, padding: Tensor | None, attention: Tensor | None
    ) -> Tensor | None:
        """Return both masks as one additive ``[batch or 1, heads or 1, target, source]``."""
        mask = None if padding is None else _additive(padding, query)[:, None, None, :]
        if attention is None:
            return mask
        additive = _additive(attention, query)
        if additive.ndim == 3:
            additive = additive.unflatten(0, (-1, self.num_heads))
        return additive if mask is None else mask + additive


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """Return a boolean mask (true: not seen) as numbers to be added to the scores."""
    if mask.dtype != torch.bool:
        return mask
    return like.new_zeros(mask.shape).masked_fill(mask, -math.inf)


def _thirds(packed: Tensor) -> list[nn.Parameter]:
    """Return the parts of query, key and value in a packed tensor, frozen if it is."""
    return [nn.Parameter(part, packed.requires_grad) for part in packed.detach().chunk(3)]


def _joined(parts: Sequence[nn.Parameter]) -> nn.Parameter | None:
    """Parts in one tensor, which is trained if one of them is; ``None`` if there are none."""
    trained = any(part.requires_grad for part in parts)
    return nn.Parameter(torch.cat(list(parts)).detach(), trained) if parts else None


def settle_fused_path(module: nn.Module) -> None:
    """Let a transformer's encoder (layer) run fused if torch would and nothing in it is random.

    Torch's fused kernels would read weights past the posterior, and skip MC dropout.
    """
    random = any(isinstance(part, RandomMap | MCDropout) for part in module.modules())
    if isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0 if random else _fused_activation(module)
    elif isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = not random and _may_nest(module)


def _fused_activation(layer: nn.TransformerEncoderLayer) -> int:
    """As torch numbers the activations that it can fuse."""
    activation = layer.activation
    if activation is F.relu or isinstance(activation, nn.ReLU):
        return 1
    return 2 if activation is F.gelu or isinstance(activation, nn.GELU) else 0


def _may_nest(encoder: nn.TransformerEncoder) -> bool:
    """Return what torch decides for a new encoder of such layers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        enabled = encoder.enable_nested_tensor
        empty = nn.TransformerEncoder(encoder.layers[0], 0, enable_nested_tensor=enabled)
    return empty.use_nested_tensor


@dataclass(frozen=True)
class TransposedLinear(Linear):
    """A linear layer whose weight is stored as ``[in, out]``."""

    def matrix(self, weight: Tensor) -> Tensor:
        return weight.t()

    def unmatrix(self, matrix: Tensor) -> Tensor:
        return matrix.mT


@register_layer("transformers.pytorch_utils.Conv1D")
class Conv1D(Affine):
    """The linear layer of GPT-2, whose weight is ``[in, out]``."""

    @classmethod
    def op_of(cls, module: Any) -> TransposedLinear:
        return TransposedLinear()


_FILE = "leanbayes"
WRITERS: list[Callable[[nn.Module, Path], Any]] = []
"""How a model is written; :func:`leanbayes.save` adds itself, and layers do not import it."""


def with_own_saving(model: nn.Module) -> None:
    """Let ``save_pretrained`` of a converted model write a file that :func:`leanbayes.load` reads.

    Its own would store tensors that ``from_pretrained`` does not know and replaces by random ones.
    """
    vars(model)["save_pretrained"] = MethodType(_save_pretrained, model)


def _save_pretrained(model: Any, save_directory: str | os.PathLike[str], **_: Any) -> None:
    """Write the configuration and the file of the weights."""
    folder = Path(save_directory)
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    WRITERS[-1](model, folder / _FILE)
