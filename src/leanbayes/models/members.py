"""Members of a mixture, and the batch repeated for each of them."""

from collections.abc import Iterator

from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.layers import RandomMap
from leanbayes.models.ensemble import DeepEnsemble


def members(model: nn.Module) -> int:
    """How many mixture members the model has: 1 unless it holds a mixture."""
    counts = set(_member_counts(model)) - {1}
    require(
        len(counts) <= 1,
        f"layers have different numbers of members, {sorted(counts)}; give all the same",
    )
    return counts.pop() if counts else 1


def _member_counts(model: nn.Module) -> Iterator[int]:
    """Of every random map and of every ensemble, whose networks may be mixtures themselves."""
    if isinstance(model, DeepEnsemble):
        inside = {members(network) for network in model.networks}
        require(
            len(inside) == 1,
            f"networks of an ensemble have different numbers of members, {sorted(inside)}; give "
            "all the same",
        )
        yield len(model.networks) * inside.pop()
        return
    if isinstance(model, RandomMap):
        yield model.members
    for part in model.children():
        yield from _member_counts(part)


def splits_batch(model: nn.Module) -> bool:
    """Whether each member is to learn from a share of a batch instead of all of it."""
    parts = list(model.modules())
    mixtures = [part for part in parts if isinstance(part, RandomMap) and part.members > 1]
    is_ensemble = any(isinstance(part, DeepEnsemble) for part in parts)
    return bool(mixtures) and not is_ensemble and all(part.splits_batch for part in mixtures)


def tile(x: Tensor, members: int, dim: int = 0) -> Tensor:
    """Repeat a batch for every member, in contiguous blocks.

    Args:
        x: the batch.
        members: how often.
        dim: which dimension counts examples.

    Example:
        >>> tile(torch.tensor([1, 2]), 2)
        tensor([1, 2, 1, 2])
    """
    repeats = [1] * x.ndim
    repeats[dim] = members
    return x.repeat(repeats)
