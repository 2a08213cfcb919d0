"""Refusal of samples that are all equal although the model is random."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.estimators import mean
from leanbayes.layers import RandomMap
from leanbayes.layers.dropout import MCDropout
from leanbayes.layers.forward_pass import Held, estimator_for
from leanbayes.models.random_maps import random_maps

__all__ = ["refuse_equal_samples"]


def refuse_equal_samples(model: nn.Module, drawn: Tensor, samples: int) -> None:
    """Raise if a random model gave the same outputs for every sample.

    Args:
        model: the model.
        drawn: outputs ``[samples · members, …]``.
        samples: number of samples.
    """
    if samples < 2 or not drawn.numel():
        return
    first, *others = drawn.chunk(samples)
    if all(torch.equal(first, other) for other in others):
        require(
            not _is_random(model),
            f"all {samples} samples are exactly equal, although the model is random: its noise "
            "does not reach the output; call its random or dropout layers in forward instead of "
            "reading their weights, and return an output that depends on them",
        )


def _is_random(model: nn.Module) -> bool:
    """Whether MC dropout drops something, or layers draw weights and none of them has no noise."""
    if any(isinstance(module, MCDropout) and module.p > 0 for module in model.modules()):
        return True
    drawing = [layer for _, layer in random_maps(model) if _draws(layer)]
    return bool(drawing) and all(map(_has_noise, drawing))


def _draws(layer: RandomMap) -> bool:
    estimator = estimator_for(layer) or layer.estimator
    return estimator is not mean and not isinstance(estimator, Held)


def _has_noise(layer: RandomMap) -> bool:
    q = layer.posterior()
    return not torch.equal(q.rsample(), q.rsample())
