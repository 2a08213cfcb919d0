"""Normalization in eval mode, softmax and attention.

The noise of statistics that an example has itself is left out.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.prediction.one_pass.activations import sigmoid
from leanbayes.prediction.one_pass.arithmetic import add, as_gaussian, matmul, mul
from leanbayes.prediction.one_pass.gaussian import Uncertain, named, need, register_moments


def _scaled(
    x: Uncertain, factor: Tensor, shift: Tensor | None = None, bias: Tensor | None = None
) -> Uncertain:
    """Return ``factor ∘ (x − shift) + bias``."""
    loc = x.loc if shift is None else x.loc - shift
    loc = loc * factor if bias is None else torch.addcmul(bias.to(loc.dtype), loc, factor)
    return Uncertain(loc, x.variance * factor.square())


def _channels(vector: Tensor | None, x: Uncertain) -> Tensor | None:
    """Return a number per channel of ``[batch, channels, …]``, in the precision of ``x``."""
    return None if vector is None else vector.to(x.dtype).view(-1, *(1,) * (x.ndim - 2))


def _statistics(x: Uncertain, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """Return the expected mean over some dimensions, and 1 over the root of the variance."""
    mean = x.loc.mean(dims, keepdim=True)
    around = (x.loc - mean).square().mean(dims, keepdim=True)
    return mean, (around + x.variance.mean(dims, keepdim=True) + eps).rsqrt()


@register_moments(F.batch_norm)
def batch_norm(
    x: Uncertain,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Uncertain:
    """Return a constant factor and shift of every channel, in eval mode."""
    need(
        not training and running_mean is not None and running_var is not None,
        "batch norm with statistics of the batch has no rule",
    )
    mean, variance = _channels(running_mean, x), _channels(running_var, x)
    assert mean is not None
    assert variance is not None
    factor, scale, shift = (variance + eps).rsqrt(), _channels(weight, x), _channels(bias, x)
    factor = factor if scale is None else factor * scale
    shift = -mean * factor if shift is None else shift - mean * factor
    return _scaled(x, factor, None, shift)


@register_moments(*named("layer_norm"))
def layer_norm(
    x: Uncertain,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Uncertain:
    """Normalize by the expected statistics of an example."""
    mean, factor = _statistics(x, tuple(range(-len(normalized_shape), 0)), eps)
    return _scaled(x, factor if weight is None else factor * weight.to(x.dtype), mean, bias)


@register_moments(*named("rms_norm"))
def rms_norm(
    x: Uncertain,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Uncertain:
    """Divide by the root of the expected mean square."""
    dims = tuple(range(-len(normalized_shape), 0))
    square = (x.loc.square() + x.variance).mean(dims, keepdim=True)
    factor = (square + (torch.finfo(x.dtype).eps if eps is None else eps)).rsqrt()
    return _scaled(x, factor if weight is None else factor * weight.to(x.dtype))


@register_moments(*named("group_norm"))
def group_norm(
    x: Uncertain,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Uncertain:
    """Normalize by the expected statistics of a group of channels."""
    grouped: Uncertain = x.each(Tensor.unflatten, 1, (num_groups, -1))
    mean, factor = _statistics(grouped, tuple(range(2, grouped.ndim)), eps)
    y: Uncertain = _scaled(grouped, factor, mean).each(Tensor.flatten, 1, 2)
    scale, shift = _channels(weight, x), _channels(bias, x)
    if scale is not None:
        y = _scaled(y, scale)
    return y if shift is None else Uncertain(y.loc + shift, y.variance)


@register_moments(F.instance_norm)
def instance_norm(
    x: Uncertain,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Uncertain:
    """Return a group norm of single channels, or a batch norm where statistics are stored."""
    if use_input_stats:
        return group_norm(x, x.shape[1], weight, bias, eps)
    return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)


def _spread(p: Tensor, variance: Tensor, dim: int) -> Tensor:
    """Return ``Σ_j (δ_ij − p_j)² v_j``: the variance of a log softmax, to first order."""
    return variance * (1 - 2 * p) + (p.square() * variance).sum(dim, keepdim=True)


@register_moments(torch.softmax, F.softmax, Tensor.softmax)
def softmax(
    x: Uncertain, dim: int, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Uncertain:
    """Apply a sigmoid to ``z_i − log Σ_{j≠i} exp z_j`` as if that was normal; means add to 1."""
    v, p = x.variance, torch.softmax(x.loc, dim)
    others = (1 - p).clamp_min(1e-6)
    spread = p.square() * v
    of_others = (spread.sum(dim, keepdim=True) - spread) / others.square()
    of_others = torch.minimum(of_others.clamp_min(0.0), v.amax(dim, keepdim=True))
    shift = ((p * v).sum(dim, keepdim=True) - p * v) / others - of_others
    odds = x.loc - x.loc.logsumexp(dim, keepdim=True) - others.log() - shift / 2
    logistic = sigmoid(Uncertain(odds, v + of_others), points=5)
    mean, variance = logistic.loc, logistic.variance
    mean = mean / mean.sum(dim, keepdim=True)
    return Uncertain(mean, torch.minimum(variance, mean * (1 - mean)))


@register_moments(torch.log_softmax, F.log_softmax, Tensor.log_softmax)
def log_softmax(
    x: Uncertain, dim: int, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Uncertain:
    """Return the mean to second order, the variance to first order in the noise."""
    logs = torch.log_softmax(x.loc, dim)
    p = logs.exp()
    shift = (p * (1 - p) * x.variance).sum(dim, keepdim=True) / 2
    return Uncertain(logs - shift, _spread(p, x.variance, dim).clamp_min(0.0))


@register_moments(F.scaled_dot_product_attention)
def attention(
    query: Uncertain | Tensor,
    key: Uncertain | Tensor,
    value: Uncertain | Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Uncertain:
    """Multiply, apply a softmax and multiply."""
    need(dropout_p == 0, "dropout of attention weights has no rule")
    need(not enable_gqa, "grouped-query attention has no rule")
    q, k, v = as_gaussian(query), as_gaussian(key), as_gaussian(value)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = mul(matmul(q, k.mT), factor)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.loc.device).tril()
        attn_mask = seen if attn_mask is None else seen & attn_mask
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=scores.dtype).masked_fill(
            ~attn_mask, -math.inf
        )
    if attn_mask is not None:
        scores = add(scores, attn_mask.to(scores.dtype))
    return matmul(softmax(scores, -1), v)
