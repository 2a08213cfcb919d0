"""Channels of traced tensors: which belong together, which are constants, and which are needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


class UntraceableError(Exception):
    """An operation, or a use of one, that the table does not have."""


def ensure(condition: bool, why: str) -> None:
    """Raise :class:`UntraceableError` unless a condition holds."""
    if not condition:
        raise UntraceableError(why)


@dataclass(eq=False)
class ChannelSpace:
    """Channels that all go or stay together, wherever tensors have them."""

    size: int
    kept: Tensor = field(init=False)
    causes: dict[str, Tensor] = field(init=False, default_factory=dict)
    _joined: ChannelSpace | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.kept = torch.zeros(self.size, dtype=torch.bool)

    @property
    def root(self) -> ChannelSpace:
        """The space that this one has become a part of."""
        return self if self._joined is None else self._joined.root

    def join(self, other: ChannelSpace) -> None:
        """Make both one; before anything is kept."""
        if self.root is not other.root:
            other.root._joined = self.root

    def keep(self, channels: Tensor, cause: str) -> bool:
        """Keep these, and remember why; returns whether any of them is new."""
        root = self.root
        fresh = channels & ~root.kept
        if not bool(fresh.any()):
            return False
        root.causes[cause] = root.causes.get(cause, torch.zeros_like(fresh)) | fresh
        root.kept = root.kept | fresh
        return True

    def cause(self, channel: int) -> str:
        """Why a channel is kept."""
        return next(cause for cause, which in self.root.causes.items() if which[channel])


@dataclass(frozen=True, eq=False)
class Channels:
    """What is known of a traced tensor.

    A feature is an index of the dimension that counts channels; after a flattening, a channel has
    several of them, one beside the other.

    Args:
        space: the channels it has.
        values: the value of every feature, where that is a constant.
        constant: whether it is, whatever the input of the network, at every position.
        rank: number of dimensions of the tensor, if known.
        last: whether its last dimension counts channels, and not the second.
        repeat: number of features per channel.
        flattened: whether it was flattened from a tensor with an unknown number of positions, so
            that ``values`` and ``repeat`` hold for one position only.
    """

    space: ChannelSpace
    values: Tensor
    constant: Tensor
    rank: int | None
    last: bool
    repeat: int = 1
    flattened: bool = False

    @property
    def is_last(self) -> bool:
        """Whether the last dimension counts channels."""
        return self.last or self.rank == 2

    @property
    def features(self) -> int:
        """How many features there are; of one position if the tensor was flattened."""
        return len(self.values)

    def with_values(self, values: Tensor, constant: Tensor | None = None) -> Channels:
        """Return the same channels with other values; only finite ones are constants."""
        constant = self.constant if constant is None else constant
        finite = values.isfinite()
        return replace(self, values=torch.where(finite, values, 0.0), constant=constant & finite)

    def with_features(self, features: int) -> Channels:
        """Return the same with this number of features, which decides what was left open."""
        times, rest = divmod(features, self.features)
        ensure(
            rest == 0 and (times == 1 or self.flattened), f"it does not have {features} features"
        )
        ensure(times == 1 or not self.last, "positions of a sequence were flattened")
        return replace(
            self,
            values=self.values.repeat_interleave(times),
            constant=self.constant.repeat_interleave(times),
            repeat=self.repeat * times,
            flattened=False,
        )

    def of_features(self, which: Tensor) -> Tensor:
        """Return the channels that have any of these features."""
        return which.view(self.space.root.size, -1).any(1)

    def kept_features(self) -> Tensor:
        """Return the features whose channels are kept."""
        return self.space.root.kept.repeat_interleave(self.repeat)


def joined(parts: Iterable[Channels]) -> Channels:
    """Return the sum of tensors: a channel of it is that channel of each of them.

    It is a constant where all summands are.
    """
    first, *others = parts
    total = first
    for other in others:
        alike = (total.features, total.repeat, total.flattened, total.space.root.size)
        ensure(
            alike == (other.features, other.repeat, other.flattened, other.space.root.size),
            "the summands have different channels",
        )
        both_last = total.is_last and other.is_last
        both_second = total.rank == other.rank is not None and not (total.last or other.last)
        ensure(both_last or both_second, "the summands have channels in different dimensions")
        rank = None if None in (total.rank, other.rank) else max(total.rank or 0, other.rank or 0)
        total = replace(
            total.with_values(total.values + other.values, total.constant & other.constant),
            rank=rank,
            last=both_last and not both_second,
        )
        total.space.join(other.space)
    return total
