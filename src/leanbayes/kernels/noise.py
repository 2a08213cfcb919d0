"""Noise of given variances: ``mean + √variance ∘ ε``."""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from leanbayes.distributions import FreshNoise
from leanbayes.distributions.base import safe_sqrt
from leanbayes.kernels.dispatch import GRAPH, Computation, Saved, Tensors, Value, kernel, run
from leanbayes.kernels.native import (
    as_rows,
    graph_seed,
    library,
    loaded,
    normals,
    pointer,
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
