"""The kernels as torch operators, which a compiler puts into its graph as they are.

``torch.compile`` cannot look into a native library. It calls these operators instead, and knows
from their fake implementations what comes out. Products and activations stay its own. Seeds are
tensors here, so that every run of a compiled graph draws anew.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import custom_op

from leanbayes.kernels.divergence import ScaledFromNormal, TiedFromNormal
from leanbayes.kernels.fused import PLAIN
from leanbayes.kernels.k_tied import native_noise, native_slopes
from leanbayes.kernels.local import noisy, slope_of_variance
from leanbayes.kernels.native import LARGEST_RANK, is_native, normals

__all__ = [
    "compiled_draw",
    "compiled_k_tied_kl",
    "compiled_k_tied_local",
    "compiled_noise",
    "compiled_scaled_kl",
    "in_graph",
]

Gradients = tuple[Tensor | None, ...]


def in_graph(*tensors: Tensor | None) -> bool:
    """Whether a compiler traces these tensors, and its graph may call the kernels."""
    if not torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting():
        return False
    if not is_native() or torch._C._are_functorch_transforms_active():
        return False
    for t in tensors:
        if t is not None and not (
            t.dtype is torch.float32 and t.device.type == "cpu" and type(t) in PLAIN
        ):
            return False
    return True


def _seed() -> Tensor:
    """A seed by torch's own operator: a compiler would make one call of two equal ones of ours."""
    return torch.randint(2**62, ())


# ---- noise of given variances


def compiled_noise(mean: Tensor, variance: Tensor) -> Tensor:
    """What :func:`~leanbayes.kernels.add_noise` is."""
    return mean + _noise(variance, _seed())


@custom_op("leanbayes::noise", mutates_args=(), device_types="cpu")
def _noise(variance: Tensor, seed: Tensor) -> Tensor:
    out = torch.zeros_like(variance, memory_format=torch.contiguous_format)
    noisy(out, variance.contiguous(), int(seed))
    return out


@custom_op("leanbayes::noise_backward", mutates_args=(), device_types="cpu")
def _noise_backward(g: Tensor, variance: Tensor, seed: Tensor) -> Tensor:
    return slope_of_variance(g, variance.contiguous(), None, int(seed))


@_noise.register_fake
def _(variance: Tensor, seed: Tensor) -> Tensor:
    return torch.empty_like(variance, memory_format=torch.contiguous_format)


@_noise_backward.register_fake
def _(g: Tensor, variance: Tensor, seed: Tensor) -> Tensor:
    return torch.empty_like(variance, memory_format=torch.contiguous_format)


_noise.register_autograd(
    lambda ctx, g: (_noise_backward(g, *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


# ---- draws of weights


def compiled_draw(like: Tensor) -> Tensor:
    """Standard normals in the shape of a matrix."""
    return _normals(like.detach(), _seed())


@custom_op("leanbayes::normals", mutates_args=(), device_types="cpu")
def _normals(like: Tensor, seed: Tensor) -> Tensor:
    return normals(like.shape, int(seed))


@_normals.register_fake
def _(like: Tensor, seed: Tensor) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


# ---- local noise of k-tied weights


def compiled_k_tied_local(
    x: Tensor, loc: Tensor, u: Tensor, v: Tensor, bias: Tensor | None, logs: bool
) -> Tensor | None:
    """What :func:`~leanbayes.kernels.k_tied_local` is; ``None`` where there is no kernel."""
    if len(u) > LARGEST_RANK:
        return None
    return _k_tied_noise(F.linear(x, loc, bias), x, u, v, _seed(), logs)[0]


@custom_op("leanbayes::k_tied_noise", mutates_args=(), device_types="cpu")
def _k_tied_noise(
    mean: Tensor, x: Tensor, u: Tensor, v: Tensor, seed: Tensor, logs: bool
) -> tuple[Tensor, Tensor]:
    y = mean.clone(memory_format=torch.contiguous_format)
    return y, native_noise(y, x.contiguous(), u.contiguous(), v.contiguous(), logs, int(seed))


@custom_op("leanbayes::k_tied_noise_backward", mutates_args=(), device_types="cpu")
def _k_tied_noise_backward(
    g: Tensor, x: Tensor, u: Tensor, v: Tensor, shared: Tensor, seed: Tensor, logs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    gx = torch.zeros_like(x, memory_format=torch.contiguous_format)
    _, gu, gv = native_slopes(g, x, u, v, shared, gx, logs, int(seed))
    return gx, gu, gv


@_k_tied_noise.register_fake
def _(
    mean: Tensor, x: Tensor, u: Tensor, v: Tensor, seed: Tensor, logs: bool
) -> tuple[Tensor, Tensor]:
    rank = u.shape[0]
    y = torch.empty_like(mean, memory_format=torch.contiguous_format)
    return y, x.new_empty(x.shape[0], rank * (rank + 1) // 2)


@_k_tied_noise_backward.register_fake
def _(
    g: Tensor, x: Tensor, u: Tensor, v: Tensor, shared: Tensor, seed: Tensor, logs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    gx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return gx, u.new_empty(u.shape), v.new_empty(v.shape)


def _save_k_tied(ctx: Any, inputs: Any, output: Any) -> None:
    _, x, u, v, seed, ctx.logs = inputs
    ctx.save_for_backward(x, u, v, output[1], seed)


def _k_tied_backward(ctx: Any, g: Tensor, _: Tensor) -> Gradients:
    return g, *_k_tied_noise_backward(g, *ctx.saved_tensors, ctx.logs), None, None


_k_tied_noise.register_autograd(_k_tied_backward, setup_context=_save_k_tied)


# ---- KL from one normal for all weights


def compiled_k_tied_kl(
    loc: Tensor, u: Tensor, v: Tensor, prior_loc: Tensor, prior_scale: Tensor, logs: bool
) -> Tensor | None:
    """What :func:`~leanbayes.kernels.k_tied_kl` is; ``None`` where there is no kernel."""
    if len(u) > LARGEST_RANK:
        return None
    return _k_tied_kl(loc, u, v, prior_loc, prior_scale, logs)[0]


def compiled_scaled_kl(
    loc: Tensor | None, scale: Tensor, prior_loc: Tensor, prior_scale: Tensor
) -> Tensor:
    """What :func:`~leanbayes.kernels.scaled_kl` is."""
    return _scaled_kl(loc, scale, prior_loc, prior_scale)[0]


@custom_op("leanbayes::k_tied_kl", mutates_args=(), device_types="cpu")
def _k_tied_kl(
    loc: Tensor, u: Tensor, v: Tensor, prior_loc: Tensor, prior_scale: Tensor, logs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    divergence = TiedFromNormal(float(prior_loc), float(prior_scale), logs)
    value, (gu, gv, _) = divergence.value(loc.contiguous(), u, v)
    assert gu is not None
    assert gv is not None
    return loc.new_tensor(float(value)), gu, gv


@custom_op("leanbayes::scaled_kl", mutates_args=(), device_types="cpu")
def _scaled_kl(
    loc: Tensor | None, scale: Tensor, prior_loc: Tensor, prior_scale: Tensor
) -> tuple[Tensor, Tensor]:
    divergence = ScaledFromNormal(float(prior_loc), float(prior_scale))
    means, scale = None if loc is None else loc.contiguous(), scale.contiguous()
    value, (slope, _) = divergence.value(means, scale)
    assert slope is not None
    return scale.new_tensor(float(value)), slope


@_k_tied_kl.register_fake
def _(
    loc: Tensor, u: Tensor, v: Tensor, prior_loc: Tensor, prior_scale: Tensor, logs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return loc.new_empty(()), u.new_empty(u.shape), v.new_empty(v.shape)


@_scaled_kl.register_fake
def _(
    loc: Tensor | None, scale: Tensor, prior_loc: Tensor, prior_scale: Tensor
) -> tuple[Tensor, Tensor]:
    return scale.new_empty(()), torch.empty_like(scale, memory_format=torch.contiguous_format)


def _save_k_tied_kl(ctx: Any, inputs: Any, output: Any) -> None:
    loc, _, _, prior_loc, prior_scale, _ = inputs
    ctx.save_for_backward(loc, prior_loc, prior_scale, *output[1:])


def _k_tied_kl_backward(ctx: Any, g: Tensor, *_: Tensor) -> Gradients:
    loc, prior_loc, prior_scale, gu, gv = ctx.saved_tensors
    return (loc - prior_loc) * (g / prior_scale.square()), g * gu, g * gv, None, None, None


def _save_scaled_kl(ctx: Any, inputs: Any, output: Any) -> None:
    loc, _, prior_loc, prior_scale = inputs
    ctx.save_for_backward(loc, prior_loc, prior_scale, output[1])


def _scaled_kl_backward(ctx: Any, g: Tensor, *_: Tensor) -> Gradients:
    loc, prior_loc, prior_scale, slope = ctx.saved_tensors
    gloc = None if loc is None else (loc - prior_loc) * (g / prior_scale.square())
    return gloc, g * slope, None, None


_k_tied_kl.register_autograd(_k_tied_kl_backward, setup_context=_save_k_tied_kl)
_scaled_kl.register_autograd(_scaled_kl_backward, setup_context=_save_scaled_kl)
