"""Batches as data loaders give them (tensors, pairs, dictionaries); models called with them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from leanbayes.errors import nearest, require


class Parts(NamedTuple):
    """What a batch consists of.

    Attributes:
        inputs: the tensors that the model is called with.
        names: the keywords of the last of them; the others come by position.
        target: target of the outputs, if there is one.
        weight: weight of every example; all the same if not given.
    """

    inputs: tuple[Tensor, ...]
    names: tuple[str, ...] = ()
    target: Tensor | None = None
    weight: Tensor | None = None

    def with_target(self, key: str) -> Tensor:
        """Return the target; raise a sentence if there is none."""
        if self.target is None:
            raise ValueError(
                f"the batch has no target{nearest(key, self.names) if self.names else ''}; give "
                f"pairs (x, y), or dictionaries with {key!r}, or name another key with target=…"
            )
        return self.target


def parts_of(batch: Any, key: str) -> Parts:
    """Return the parts of a batch: a tensor, ``(x,)``, ``(x, y)`` or a dictionary; ``x`` may be
    any of these, or a tuple of tensors.

    Args:
        batch: a batch of a data loader.
        key: under which a dictionary has the target.
    """
    if isinstance(batch, Parts):
        return batch
    if isinstance(batch, Mapping):
        inputs = {name: value for name, value in batch.items() if name != key}
        return Parts(_tensors(tuple(inputs.values())), tuple(inputs), batch.get(key))
    if isinstance(batch, Tensor):
        return Parts((batch,))
    require(
        isinstance(batch, list | tuple) and len(batch) in (1, 2),
        f"a batch is a {type(batch).__name__}; give a tensor, a pair (x, y) or a dictionary",
    )
    x, *rest = batch
    if isinstance(x, Mapping):
        return parts_of(x, key)._replace(target=rest[0] if rest else x.get(key))
    given = tuple(x) if isinstance(x, list | tuple) else (x,)
    return Parts(_tensors(given), (), rest[0] if rest else None)


def _tensors(inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    require(bool(inputs), "a batch has no inputs; give at least one tensor")
    for value in inputs:
        if not isinstance(value, Tensor):
            raise TypeError(f"an input of a batch is a {type(value).__name__}; give tensors")
    return inputs


class Called(nn.Module):
    """A model that takes tensors by position and gives one.

    Args:
        model: the model.
        names: the keywords that it takes its inputs by; none for positions.
        output: from what the model gives to the tensor that the likelihood is about; by default
            that tensor itself, or its ``logits``.
    """

    def __init__(
        self, model: nn.Module, names: tuple[str, ...], output: Callable[[Any], Tensor] | None
    ) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *inputs: Tensor) -> Tensor:
        named = dict(zip(self.names, inputs, strict=True)) if self.names else {}
        given = self.model(**named) if named else self.model(*inputs)
        if self.output is not None:
            return self.output(given)
        outputs = getattr(given, "logits", given)
        if not isinstance(outputs, Tensor):
            raise TypeError(
                f"the model gives a {type(given).__name__}; choose a tensor of it with "
                "output=lambda given: …"
            )
        return outputs
