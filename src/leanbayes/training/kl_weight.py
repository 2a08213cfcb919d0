"""The KL weight of the recommended recipe."""

from torch import nn

from leanbayes.errors import require
from leanbayes.models.random_maps import random_maps

_WEIGHTS_PER_EXAMPLE = 2.0
"""Chosen on validation data of seven tasks: docs/train_well.md."""


def recommended_kl_weight(model: nn.Module, data_size: float) -> float:
    """The KL weight that serves networks of any size: ``min(1, N / (2 P))``.

    With fewer than two examples per random weight the whole KL underfits; with more of them the
    weight is 1, and the loss is the ELBO.

    Args:
        model: a converted model.
        data_size: number ``N`` of training examples.

    Returns:
        The weight, at most 1.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(100, 10))
        >>> recommended_kl_weight(model, 500), recommended_kl_weight(model, 50_000)
        (0.25, 1.0)
    """
    require(data_size > 0, f"data_size must be positive, got {data_size}. Give the number of "
            "training examples")  # fmt: skip
    count = random_weights(model)
    return min(1.0, data_size / (_WEIGHTS_PER_EXAMPLE * count)) if count else 1.0


def random_weights(model: nn.Module) -> int:
    """The number of random weights of a model; for rank-one layers that of their factors.

    Example:
        >>> import leanbayes as lb
        >>> random_weights(lb.convert(nn.Linear(100, 10), lb.Rank1(members=2)))
        220
    """
    total = 0
    for _, layer in random_maps(model):
        factors = layer.posterior.tensors("factors").values()
        total += sum(factor.numel() for factor in factors) or layer.posterior().event_shape.numel()
    return total
