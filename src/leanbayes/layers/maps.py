"""Drawn maps in full precision, and what can be asked of a drawn map."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from leanbayes.distributions import LocalMap, Map
from leanbayes.ops import LinearOp
from leanbayes.precision import full_precision, output_dtype, wide


@dataclass(frozen=True, eq=False)
class RoundedMap:
    """A map that is applied in full precision, for inputs and outputs in half of it.

    Args:
        drawn: the map.
        dtype: the dtype of the layer's parameters; that of the input if not given.
    """

    drawn: Map
    dtype: torch.dtype | None = None

    def __call__(self, x: Tensor, /) -> Tensor:
        with full_precision(x.device):
            y = self.drawn(wide(x))
        same = x.dtype if x.is_floating_point() else y.dtype
        return y.to(output_dtype(x, self.dtype or same))


def draws_anew(drawn: Map) -> bool:
    """Return whether a map draws at every application, so that it is not one function."""
    return isinstance(drawn.drawn if isinstance(drawn, RoundedMap) else drawn, LocalMap)


def with_op(drawn: Map, op: LinearOp) -> Map:
    """Return the same draw for an op that differs in the size of outputs."""
    if isinstance(drawn, RoundedMap):
        return replace(drawn, drawn=with_op(drawn.drawn, op))
    held: Any = drawn  # the maps of this package are dataclasses with an op
    return replace(held, op=op)
