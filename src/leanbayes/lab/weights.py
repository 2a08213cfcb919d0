"""Means, standard deviations and log α of the weights of a model, by layer."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from leanbayes.models.random_maps import random_maps
from leanbayes.posteriors import VariationalDropout, ZeroMean


def log_alphas(model: nn.Module) -> dict[str, Tensor]:
    """Return ``log α = log(σ² / μ²)`` of each weight, in every layer of Gaussian dropout."""
    with torch.no_grad():
        return {
            name or "layer": -layer.posterior().log_inverse_alpha()
            for name, layer in random_maps(model)
            if isinstance(layer.posterior.spec, VariationalDropout)
        }


def mean_scales(model: nn.Module) -> dict[str, float]:
    """Return the mean standard deviation of the weights, by layer."""
    return {name: float(scale.mean()) for name, _, scale in _matrices(model)}


def scale_matrices(model: nn.Module) -> dict[str, Tensor]:
    """Return the standard deviations of every layer that has a matrix of them."""
    return {name: scale for name, _, scale in _matrices(model)}


def mean_matrices(model: nn.Module) -> dict[str, Tensor]:
    """Return the means of the same layers, where they are not all zero."""
    return {name: mean for name, mean, _ in _matrices(model) if bool(mean.any())}


def signal_to_noise(model: nn.Module) -> dict[str, Tensor]:
    """Return ``|μ| / σ`` of each weight, where neither is zero by design."""
    matrices = _matrices(model, without=ZeroMean)
    return {name: mean.abs() / scale for name, mean, scale in matrices}


@torch.no_grad()
def _matrices(
    model: nn.Module, without: type | tuple[type, ...] = ()
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Means and standard deviations of whole matrices; biases, points and mixtures have none."""
    for name, layer in random_maps(model):
        q = layer.posterior()
        whole = q.members == 1 and len(q.event_shape) == 2 and min(q.event_shape) > 1
        if whole and not isinstance(layer.posterior.spec, without):
            scale = q.variance.sqrt().cpu()
            if bool(scale.isfinite().all()) and bool((scale > 0).any()):
                yield name or "layer", q.mean.cpu(), scale
