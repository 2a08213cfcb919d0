"""Report of a compaction: sizes before and after, and what stays masked."""

from dataclasses import dataclass
from typing import NamedTuple

from leanbayes.analysis.sparsity import thousands
from leanbayes.display import DisplayTable, shown_as_table


class CompactLayer(NamedTuple):
    """The matrix of one layer, ``[outputs, inputs · kernel]``, before and after.

    Attributes:
        name: of the layer in the model.
        before: rows and columns of its matrix.
        after: those that are left.
        multiply_adds_before: of one example; ``None`` without an example to count with.
        multiply_adds_after: the same afterwards.
    """

    name: str
    before: tuple[int, int]
    after: tuple[int, int]
    multiply_adds_before: int | None = None
    multiply_adds_after: int | None = None


class StillMasked(NamedTuple):
    """Something that stays as it was.

    Attributes:
        name: a layer, or an operation of the traced graph.
        units: how many of its units are switched off and stay.
        why: the reason.
    """

    name: str
    units: int
    why: str

    def __str__(self) -> str:
        count = f", {self.units} of its units" if self.units else ""
        return f"kept: {self.name or '(the model)'}{count}: {self.why}"


@shown_as_table
@dataclass(frozen=True)
class CompactionReport:
    """What :func:`~leanbayes.compact` did; ``print`` shows a table.

    Attributes:
        layers: every layer with weights that was followed.
        kept: what is switched off and could not be removed, and why.
    """

    layers: tuple[CompactLayer, ...]
    kept: tuple[StillMasked, ...]

    @property
    def multiply_adds(self) -> tuple[int, int] | None:
        """Of one example in all these layers, before and after; ``None`` without an example."""
        pairs = [(row.multiply_adds_before, row.multiply_adds_after) for row in self.layers]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        if len(known) < len(pairs) or not known:
            return None
        before, after = zip(*known, strict=True)
        return sum(before), sum(after)

    def table(self) -> DisplayTable:
        """A row for every layer, one for all together, and what was kept."""
        table = []
        for row in self.layers:
            counts = (row.multiply_adds_before, row.multiply_adds_after)
            shapes = (f"{rows} × {columns}" for rows, columns in (row.before, row.after))
            table.append([row.name or "(the model)", *shapes, *map(thousands, counts)])
        totals = self.multiply_adds
        if totals is not None:
            table.append(["all", "", "", *map(thousands, totals)])
        head = ["layer", "before", "after", "multiply-adds", "after"]
        return DisplayTable(head, table, notes=[*map(str, self.kept)])
