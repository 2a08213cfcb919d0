"""Noise of given variances, ``mean + √variance ∘ ε``, also shared by examples of a prediction."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op

from leanbayes.distributions import FreshNoise
from leanbayes.distributions.base import safe_sqrt
from leanbayes.kernels.dispatch import (
    GRAPH,
    Computation,
    Saved,
    Tensors,
    Value,
    as_rows,
    graph_seed,
    kernel,
    library,
    loaded,
    normals,
    pointer,
    run,
    seed,
    threads,
)


def spread(y: Tensor, variance: Tensor, native: Any) -> tuple[int | None, Tensor]:
    """Add noise in place; returns its seed and the tensor that :func:`slope_of_variance` needs.

    That is the variance, or ``ε / std``, zero where the variance is, if torch drew the noise.
    """
    if native is None:
        std = variance.sqrt()
        e = torch.randn_like(std)
        y.addcmul_(std, e)
        return None, e.div_(std).nan_to_num_(0.0, 0.0, 0.0)
    by = seed()
    native.noise_forward(pointer(y), pointer(variance), *as_rows(y), by, threads(y.numel()))
    return by, variance


def slope_of_variance(g: Tensor, kept: Tensor, by: int | None) -> Tensor:
    """Return the gradient of the variance: ``½ g ε / √variance``."""
    if by is None:
        return (g * kept).mul_(0.5)
    g, slope = g.contiguous(), torch.empty_like(kept)
    tensors, count = map(pointer, (g, kept, slope)), slope.numel()
    loaded().noise_backward(*tensors, *as_rows(slope), by, threads(count))
    return slope


class NoisyOutputs(Computation):
    """Outputs ``mean + √variance ∘ ε``; the last tensor that is kept comes from :func:`spread`."""

    def law(self, *tensors: Any) -> tuple[Tensor, Tensor]:
        """Return the mean and variance by plain formulas."""
        raise NotImplementedError

    def plain(self, e: Any, *tensors: Any) -> Tensor:
        mean, variance = self.law(*tensors)
        return torch.addcmul(mean, safe_sqrt(variance), e)

    def noise(self, g: Tensor, call: Saved) -> Tensor:
        if call.seed is not None:
            return normals(g.shape, call.seed)
        _, variance = self.law(*call.tensors)
        e: Tensor = call.kept[-1] * safe_sqrt(variance.detach())
        return e


class _AddNoise(NoisyOutputs):
    def forward(self, mean: Tensor, variance: Tensor) -> Value:
        y = mean.expand_as(variance).clone(memory_format=torch.contiguous_format)
        by, kept = spread(y, variance, library(mean, variance))
        return Value(y, by, (kept,))

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        need_mean, need_variance = call.needed
        slope = slope_of_variance(g, call.kept[0], call.seed) if need_variance else None
        return g.sum_to_size(call.tensors[0].shape) if need_mean else None, slope

    def law(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return mean, variance


def add_noise(mean: Tensor, variance: Tensor) -> Tensor:
    """Return ``mean + √variance ∘ ε`` with standard normal ``ε`` in the shape of the variance.

    The gradient is zero where the variance is.
    """
    return run(_AddNoise(), mean, variance)


@kernel("noise", FreshNoise)
def _noise(noise: FreshNoise, _: None, mean: Tensor, variance: Tensor) -> Tensor:
    return add_noise(mean, variance)


@kernel("noise", FreshNoise, mode=GRAPH)
def _graph_noise(noise: FreshNoise, _: None, mean: Tensor, variance: Tensor) -> Tensor:
    return mean + _noise_op(variance, graph_seed())


@custom_op("leanbayes::noise", mutates_args=(), device_types="cpu")
def _noise_op(variance: Tensor, seed: Tensor) -> Tensor:
    out = torch.zeros_like(variance, memory_format=torch.contiguous_format)
    dense, sizes = variance.contiguous(), (*as_rows(out), int(seed), threads(out.numel()))
    loaded().noise_forward(pointer(out), pointer(dense), *sizes)
    return out


@custom_op("leanbayes::noise_backward", mutates_args=(), device_types="cpu")
def _noise_backward_op(g: Tensor, variance: Tensor, seed: Tensor) -> Tensor:
    return slope_of_variance(g, variance.contiguous(), int(seed))


def _like(like: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


_noise_op.register_fake(_like)
_noise_backward_op.register_fake(_like)
_noise_op.register_autograd(
    lambda ctx, g: (_noise_backward_op(g, *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def graph_normals(like: Tensor) -> Tensor:
    """Return standard normals in the shape of a matrix, as an operator of a compiled graph."""
    return _normals_op(like.detach(), graph_seed())


@custom_op("leanbayes::normals", mutates_args=(), device_types="cpu")
def _normals_op(like: Tensor, seed: Tensor) -> Tensor:
    return normals(like.shape, int(seed))


_normals_op.register_fake(_like)


NARROW = 15
"""So few outputs have a kernel that multiplies by itself."""


class Sharing(NamedTuple):
    """How many draws of how many examples, and how many examples share a number of noise."""

    samples: int
    examples: int
    each: int


def windows(sharing: Sharing, width: int, like: Tensor) -> Tensor:
    """Return unit normals ``[samples, examples, width]``, each shared by so many examples.

    An example looks at a row of numbers through a separate window, one part of a window further
    than the example before. So each window is white noise, two examples never meet the same number
    in the same place, and nothing is copied.
    """
    step = max(-(-width // sharing.each), 1)
    numbers = width + (sharing.examples - 1) * step
    row = torch.randn(sharing.samples, numbers, dtype=like.dtype, device=like.device)
    return row.unfold(1, width, step)


def shared_noise(
    mean: Tensor | None, bias: Tensor | None, variance: Tensor, sharing: Sharing
) -> Tensor:
    """Return draws ``[samples · examples, …]`` of ``mean + bias + √variance ∘ ε``.

    Rows of the law are those of all samples, or of one that serves them all. The memory of the
    variance is used up.

    Args:
        mean: ``[rows, …]``; ``None`` for zero.
        bias: bias of every row alike; ``None`` for zero.
        variance: ``[rows, …]``, not negative.
        sharing: number of draws.
    """
    native = library(mean, bias, variance)
    if native is None:
        center = bias if mean is None else mean if bias is None else mean + bias
        return _spread(center, variance.sqrt_(), sharing)
    n, given = _sizes(variance, sharing)
    y = room_for(variance, sharing)
    tensors = map(pointer, (y, mean, bias, variance))
    sizes = sharing.samples, sharing.examples, n, given, sharing.each
    native.fold_noise(*tensors, *sizes, seed(), threads(y.numel()))
    return y


def narrow_samples(
    x: Tensor, loc: Tensor | None, variance: Tensor, bias: Tensor | None, sharing: Sharing
) -> Tensor | None:
    """Draw a few outputs by the kernel's own product; ``None`` without the library."""
    dense = x.contiguous(), loc, bias, variance
    native, n = library(*dense), len(variance)
    if native is None or n > NARROW:
        return None
    y = x.new_empty(sharing.samples * sharing.examples, n)
    given = len(x) // max(sharing.examples, 1)
    sizes = sharing.samples, sharing.examples, n, given, sharing.each, x.shape[1]
    native.fold_narrow(pointer(y), *map(pointer, dense), *sizes, seed(), threads(x.numel()))
    return y


def room_for(law: Tensor, sharing: Sharing) -> Tensor:
    """Return memory for all draws: that of the law, if it is known of every sample."""
    rows = sharing.samples * sharing.examples
    return law if len(law) == rows else law.new_empty(rows, *law.shape[1:])


def _spread(center: Tensor | None, std: Tensor, sharing: Sharing) -> Tensor:
    """Add noise around a center, in the memory of ``std`` if that is large enough."""
    n, given = _sizes(std, sharing)
    shape = (given, sharing.examples, *std.shape[1:])
    std = std.view(shape)
    e = windows(sharing, n, std).view(sharing.samples, sharing.examples, *std.shape[2:])
    out = std if given == sharing.samples else None
    if center is None:
        return torch.mul(std, e, out=out).flatten(0, 1)
    center = center.view(shape) if center.numel() == std.numel() else center
    return torch.addcmul(center, std, e, out=out).flatten(0, 1)


def _sizes(law: Tensor, sharing: Sharing) -> tuple[int, int]:
    """Return how many numbers a row has, and of how many samples the law is known."""
    rows = law.shape[0]
    return law.numel() // max(rows, 1), rows // max(sharing.examples, 1)
