"""Moments of activation functions: closed forms where there are some, else Gauss–Hermite."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.distributions.gauss_hermite import POINTS, normal_moments
from leanbayes.kernels import relu_moments, sigmoid_moments
from leanbayes.prediction.one_pass.arithmetic import mul
from leanbayes.prediction.one_pass.gaussian import Uncertain, named, need, register_moments

_SMOOTH = "elu selu celu gelu silu mish softplus logsigmoid erf exp sin cos"


def smooth(function: Callable[..., Tensor]) -> Callable[..., Uncertain]:
    """Return the rule of a smooth elementwise function, by Gauss–Hermite quadrature."""

    def rule(x: Uncertain, *args: Any, inplace: bool = False, **kwargs: Any) -> Uncertain:
        apply = partial(_with_arguments, function, args, kwargs)
        y = Uncertain(*normal_moments(apply, x.loc, x.variance))
        return x.assign(y) if inplace else y

    return rule


def _with_arguments(
    function: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], x: Tensor
) -> Tensor:
    return function(x, *args, **kwargs)


for _function in named(_SMOOTH):
    register_moments(_function)(smooth(_function))


@register_moments(*named("sigmoid"))
def sigmoid(x: Uncertain, *, points: int = POINTS) -> Uncertain:
    """Take means of the quadrature's nodes, by one kernel where there is one."""
    found = sigmoid_moments(x.loc, x.variance, points)
    return Uncertain(*(found or normal_moments(torch.sigmoid, x.loc, x.variance, points)))


@register_moments(*named("tanh"))
def tanh(x: Uncertain) -> Uncertain:
    """Return ``2 sigmoid(2x) − 1``."""
    y = sigmoid(Uncertain(2 * x.loc, 4 * x.variance))
    return Uncertain(2 * y.loc - 1, 4 * y.variance)


def _standardized(x: Uncertain) -> tuple[Tensor, Tensor]:
    """Return standard deviation ``s`` and ``a = loc / s``, both finite."""
    s = x.variance.clamp_min(torch.finfo(x.variance.dtype).tiny).sqrt()
    return s, (x.loc / s).clamp(-30.0, 30.0)


@register_moments(*named("relu relu_"))
def relu(x: Uncertain, inplace: bool = False) -> Uncertain:
    """Cut at 0: ``E = mΦ + sφ``, ``Var = v (Φ + a² Φ(1 − Φ) + aφ(1 − 2Φ) − φ²)``, ``a = m/s``."""
    return leaky_relu(x, 0.0, inplace)


@register_moments(*named("leaky_relu leaky_relu_"))
def leaky_relu(x: Uncertain, negative_slope: float = 0.01, inplace: bool = False) -> Uncertain:
    """Return ``λx + (1 − λ) relu(x)``, with ``Cov(x, relu(x)) = vΦ``."""
    fused = relu_moments(x.loc, x.variance, negative_slope)
    y = _leaky_relu(x, negative_slope) if fused is None else Uncertain(*fused)
    return x.assign(y) if inplace else y


def _leaky_relu(x: Uncertain, negative_slope: Any) -> Uncertain:
    s, a = _standardized(x)
    above, below = torch.special.ndtr(a), torch.special.ndtr(-a)
    density = torch.exp(-0.5 * a * a) / math.sqrt(2 * math.pi)
    share = above + a * (a * above * below + density * (below - above)) - density.square()
    rectified = x.loc * above + s * density
    rest = 1 - negative_slope
    spread = negative_slope**2 + 2 * negative_slope * rest * above + rest**2 * share
    loc = negative_slope * x.loc + rest * rectified
    return Uncertain(loc, x.variance * spread.clamp_min(0.0))


@register_moments(*named("prelu"))
def prelu(x: Uncertain, weight: Tensor) -> Uncertain:
    """Return a leaky ReLU whose slope is learned, for all channels or for each."""
    if weight.numel() == 1:
        return leaky_relu(x, float(weight))
    return _leaky_relu(x, weight.to(x.dtype).view(-1, *(1,) * (x.ndim - 2)))


def _clipped(x: Uncertain, low: float, high: float) -> Uncertain:
    """Return moments of a normal number that is moved to the nearest end of an interval."""
    s, _ = _standardized(x)
    below, above = low - x.loc, high - x.loc
    a, b = ((end / s).clamp(-30.0, 30.0) for end in (below, above))
    at_low, at_high = torch.special.ndtr(a), torch.special.ndtr(-b)
    first, last = (torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) for z in (a, b))
    mean = below * at_low + above * at_high - s * (last - first)
    inside = 1 - at_low - at_high - (b * last - a * first)
    square = below.square() * at_low + above.square() * at_high + x.variance * inside
    return Uncertain(x.loc + mean, (square - mean.square()).clamp_min(0.0))


@register_moments(*named("relu6"))
def relu6(x: Uncertain, inplace: bool = False) -> Uncertain:
    """Cut at 0 and at 6."""
    return _clipped(x, 0.0, 6.0)


@register_moments(*named("hardtanh"))
def hardtanh(
    x: Uncertain, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Uncertain:
    """Cut at both ends."""
    return _clipped(x, min_val, max_val)


@register_moments(*named("hardsigmoid"))
def hardsigmoid(x: Uncertain, inplace: bool = False) -> Uncertain:
    """Return ``x / 6 + 1/2``, cut at 0 and at 1."""
    return _clipped(Uncertain(x.loc / 6 + 0.5, x.variance / 36), 0.0, 1.0)


@register_moments(*named("clamp clip"))
def clamp(x: Uncertain, min: float | None = None, max: float | None = None) -> Uncertain:
    """Cut at one or both ends, which are not random."""
    numbers = [end for end in (min, max) if isinstance(end, int | float)]
    need(len(numbers) == (min is not None) + (max is not None), "clamp has ends that are tensors")
    if min is not None and max is not None:
        return _clipped(x, min, max)
    end, sign = numbers[0], 1 if max is None else -1
    y = relu(Uncertain(sign * (x.loc - end), x.variance))
    return Uncertain(sign * y.loc + end, y.variance)


@register_moments(*named("clamp_min"))
def clamp_min(x: Uncertain, min: float) -> Uncertain:
    """Cut at the lower end."""
    return clamp(x, min)


@register_moments(*named("glu"))
def glu(x: Uncertain, dim: int = -1) -> Uncertain:
    """Return the first half times the sigmoid of the second."""
    first, second = x.each(Tensor.chunk, 2, dim)
    return mul(first, sigmoid(second))


@register_moments(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
def dropout(
    x: Uncertain, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Uncertain:
    """Change nothing in eval mode; with MC dropout ``E = m`` and ``Var = (v + p m²) / (1 − p)``."""
    if not training or p == 0:
        return x
    need(p < 1, "dropout of everything has no rule")
    return Uncertain(x.loc, (x.variance + p * x.loc.square()) / (1 - p))


@register_moments(torch.dropout)
def _torch_dropout(x: Uncertain, p: float, train: bool) -> Uncertain:
    return dropout(x, p, train)


@register_moments(F.alpha_dropout, F.feature_alpha_dropout)
def _alpha_dropout(
    x: Uncertain, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Uncertain:
    need(not training or p == 0, "alpha dropout at prediction has no rule")
    return x
