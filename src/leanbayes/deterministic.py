"""Bayesian -> deterministic: plain torch layers with the posterior means as weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.attention import Attention
from leanbayes.build import BAYESIAN
from leanbayes.layers import Affine, RandomMap
from leanbayes.ops import Conv, ConvTranspose, Linear, LinearOp, Lookup
from leanbayes.places import put, topmost
from leanbayes.recurrent import Recurrent

__all__ = ["deterministic"]

_CONVS: dict[int, Callable[..., nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: dict[int, Callable[..., nn.Module]] = {
    1: nn.ConvTranspose1d,
    2: nn.ConvTranspose2d,
    3: nn.ConvTranspose3d,
}


def deterministic(model: nn.Module, *, member: int | None = None) -> nn.Module:
    """Back to plain torch layers with the posterior means as weights; a copy.

    Args:
        model: a converted model.
        member: which member of a mixture to take; a mixture has no single mean.

    Example:
        >>> import leanbayes as lb
        >>> net = nn.Linear(3, 2)
        >>> same = deterministic(lb.convert(net, lb.KTied(2), lb.Normal(1.0)))
        >>> torch.equal(same.weight, net.weight)
        True
    """
    model = copy.deepcopy(model)
    with torch.no_grad():
        plains = [
            (names, _plain(layer, member)) for layer, names in topmost(model, BAYESIAN).items()
        ]
    for names, plain in plains:
        for name in names:
            model = put(model, name, plain)
    _enter_fused_paths(model)
    return model


def _enter_fused_paths(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            activation = module.activation
            relu = activation is nn.functional.relu or isinstance(activation, nn.ReLU)
            gelu = activation is nn.functional.gelu or isinstance(activation, nn.GELU)
            module.activation_relu_or_gelu = 1 if relu else 2 if gelu else 0
        if isinstance(module, nn.TransformerEncoder) and "nested_before_conversion" in vars(module):
            module.use_nested_tensor = vars(module).pop("nested_before_conversion")


def _plain(layer: nn.Module, member: int | None) -> nn.Module:
    """The torch layer that a Bayesian one stands for, with its means as weights."""
    if isinstance(layer, Recurrent):
        plain = _plain_recurrent(layer, member)
    elif isinstance(layer, Attention):
        plain = _plain_attention(layer, member)
    else:
        assert isinstance(layer, Affine)
        plain = _plain_affine(layer, member)
    return plain.train(layer.training)


def _mean(layer: RandomMap, member: int | None) -> Tensor:
    """The mean weight in torch's own shape, of one member if there are several."""
    if layer.members == 1:
        return layer.weight
    if member is None:
        raise ValueError(
            f"a mixture of {layer.members} members has no single mean; pass member=0 … "
            f"{layer.members - 1}"
        )
    if not 0 <= member < layer.members:
        raise ValueError(f"member {member} does not exist; there are {layer.members}")
    return layer.weight[member]


def _bias(layer: Affine, member: int | None) -> Tensor | None:
    if isinstance(layer.bias, RandomMap):
        return _mean(layer.bias, member).squeeze(-1)
    if layer.bias is not None and layer.bias.ndim == 2:
        return layer.bias[member or 0]
    return layer.bias


def _fill(
    module: nn.Module, tensors: Mapping[str, Tensor | None], frozen: Collection[str] = ()
) -> nn.Module:
    """Give a module on the meta device its weights; frozen ones are not trained."""
    for name, tensor in tensors.items():
        if tensor is not None:
            owner, _, attribute = name.rpartition(".")
            trained = name not in frozen
            parameter = nn.Parameter(tensor.detach().clone().contiguous(), requires_grad=trained)
            setattr(module.get_submodule(owner), attribute, parameter)
    return module


def _plain_affine(layer: Affine, member: int | None) -> nn.Module:
    weight, bias = _mean(layer, member), _bias(layer, member)
    module = _empty(layer.op, weight, bias is not None)
    frozen = {name for name, part in (("weight", layer), ("bias", layer.bias)) if _is_frozen(part)}
    return _fill(module, {"weight": weight, "bias": bias}, frozen)


def _is_frozen(part: RandomMap | nn.Parameter | None) -> bool:
    """Whether the means are not trained."""
    if not isinstance(part, RandomMap):
        return part is not None and not part.requires_grad
    means = [p for n, p in part.posterior.named_parameters() if n in ("loc", "weight")]
    return bool(means) and not any(p.requires_grad for p in means)


def _empty(op: LinearOp, weight: Tensor, bias: bool) -> nn.Module:
    """The torch layer of an op and a weight shape, without its numbers."""
    if isinstance(op, Linear):
        return nn.Linear(weight.shape[1], weight.shape[0], bias, device="meta")
    if isinstance(op, Lookup):
        entries, dimension = weight.shape
        return nn.Embedding(entries, dimension, op.padding_index, device="meta")
    assert isinstance(op, Conv | ConvTranspose)
    options: dict[str, Any] = {
        "kernel_size": op.kernel_size,
        "stride": op.stride,
        "padding": op.padding,
        "dilation": op.dilation,
        "groups": op.groups,
        "bias": bias,
        "device": "meta",
    }
    channels = weight.shape[1] * op.groups, weight.shape[0]
    if isinstance(op, Conv):
        options["padding_mode"] = op.padding_mode
        return _CONVS[len(op.kernel_size)](*channels, **options)
    options["output_padding"] = op.output_padding
    channels = weight.shape[0], weight.shape[1] * op.groups
    return _TRANSPOSED[len(op.kernel_size)](*channels, **options)


def _plain_recurrent(layer: Recurrent, member: int | None) -> nn.Module:
    kinds = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN_TANH": nn.RNN, "RNN_RELU": nn.RNN}
    options: dict[str, Any] = {
        "device": "meta",
        "num_layers": layer.num_layers,
        "bias": layer.has_bias,
        "batch_first": layer.batch_first,
        "dropout": layer.dropout,
        "bidirectional": layer.bidirectional,
    }
    if layer.mode == "LSTM":
        options["proj_size"] = layer.proj_size
    if layer.mode.startswith("RNN"):
        options["nonlinearity"] = layer.mode.removeprefix("RNN_").lower()
    module = kinds[layer.mode](layer.input_size, layer.hidden_size, **options)
    tensors: dict[str, Tensor | None] = {}
    for name in (name for names in layer.order for name in names):
        if name in layer.maps:
            weight = _mean(layer.map(name), member)
            tensors[name] = weight.squeeze(-1) if name.startswith("bias") else weight
        else:
            parameter: Tensor = getattr(layer, name)
            tensors[name] = parameter[member or 0] if parameter.ndim == 2 else parameter
    frozen = {name for name in tensors if name in layer.maps and _is_frozen(layer.map(name))}
    frozen |= {name for name, p in layer.named_parameters(recurse=False) if not p.requires_grad}
    return _fill(module, tensors, frozen)


def _plain_attention(layer: Attention, member: int | None) -> nn.Module:
    projections = {"q": layer.q_proj, "k": layer.k_proj, "v": layer.v_proj}
    means = {name: _mean(part, member) for name, part in projections.items()}
    biases = [_bias(part, member) for part in projections.values()]
    module = nn.MultiheadAttention(
        layer.embed_dim,
        layer.num_heads,
        dropout=layer.dropout,
        bias=biases[0] is not None,
        kdim=layer.kdim,
        vdim=layer.vdim,
        batch_first=layer.batch_first,
        device="meta",
    )
    tensors: dict[str, Tensor | None] = {
        "out_proj.weight": _mean(layer.out_proj, member),
        "out_proj.bias": _bias(layer.out_proj, member),
    }
    present = [bias for bias in biases if bias is not None]
    if present:
        tensors["in_proj_bias"] = torch.cat(present)
    if layer.packed:
        tensors["in_proj_weight"] = torch.cat(list(means.values()))
    else:
        tensors.update({f"{name}_proj_weight": mean for name, mean in means.items()})
    return _fill(module, tensors)
