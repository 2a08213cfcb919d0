"""Tables of independent vectors: draw the entries that are looked up, not the whole table."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.distributions import FixedMap, KTiedNormal, LocationScale
from leanbayes.kernels.dispatch import kernel
from leanbayes.ops import Lookup

_MOST = 0.5
"""Share of its entries beyond which a table is drawn whole."""

Table = KTiedNormal | LocationScale


class LookedUp(NamedTuple):
    """Entries that one input looks up.

    Attributes:
        x: the input.
        entries: those of the input, sorted, each once.
        place: place of each of ``x`` among them.
        law: the law of these entries, as rows.
    """

    x: Tensor
    entries: Tensor
    place: Tensor
    law: Table

    @staticmethod
    def of(q: Table, x: Tensor) -> LookedUp:
        """Sort an input and take the law of its entries."""
        index, place = x.unique(return_inverse=True)
        return LookedUp(x, index, place, q.columns(index))


class DrawnEntries(FixedMap):
    """One draw of a table of which some entries are drawn; the others follow if they are used.

    Entries are independent, so the order in which they are drawn does not change their law.
    """

    q: Table
    found: LookedUp
    drawn: Tensor

    def __init__(self, op: Lookup, q: Table, found: LookedUp) -> None:
        vars(self).update(op=op, q=q, found=found, drawn=found.law.rsample())

    @cached_property
    def weight(self) -> Tensor:
        """The whole table ``[dimension, entries]``."""
        return self.q.rsample().index_copy(1, self.found.entries, self.drawn.mT)

    def __call__(self, x: Tensor, bias: Tensor | None = None, /) -> Tensor:
        place = self._place(x)
        if place is None:
            return super().__call__(x, bias)
        y = self.op.silence(x, F.embedding(place, self.drawn))
        return y if bias is None else self.op.add_bias(y, bias)

    def _place(self, x: Tensor) -> Tensor | None:
        """Where the entries of an input are among those drawn; ``None`` if some are not."""
        known, index, place, _ = self.found
        if known.shape == x.shape and torch.equal(known, x):
            return place
        place = torch.searchsorted(index, x.contiguous()).clamp_(max=len(index) - 1)
        return place if torch.equal(index[place], x) else None


_LAST: WeakKeyDictionary[Table, LookedUp] = WeakKeyDictionary()
"""The last entries of tables that samples of one prediction look up again and again."""


@kernel("entries", KTiedNormal, Lookup)
@kernel("entries", LocationScale, Lookup)
def _entries(q: Table, op: Lookup, x: Tensor) -> DrawnEntries | None:
    known = None if torch.is_grad_enabled() else _LAST.get(q)
    if known is None or known.x.shape != x.shape or not torch.equal(known.x, x):
        known = LookedUp.of(q, x)
        if not torch.is_grad_enabled():
            _LAST[q] = known._replace(x=x.clone())
    few = 0 < len(known.entries) <= _MOST * q.event_shape[1]
    return DrawnEntries(op, q, known) if few else None
