"""Softmax and attention."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.prediction.one_pass.activations import sigmoid
from leanbayes.prediction.one_pass.arithmetic import add, as_gaussian, matmul, mul
from leanbayes.prediction.one_pass.gaussian import Uncertain, need, register_moments


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
