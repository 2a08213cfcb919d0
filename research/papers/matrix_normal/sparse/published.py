"""Printed numbers of sparse networks [matrix normal, Tables 1 and 2]."""

from collections.abc import Mapping
from dataclasses import dataclass

ITERATION = 2.0
"""How many times as long as with independent weights an iteration takes (section 7)."""


@dataclass(frozen=True)
class Printed:
    """A line of percentages, and the total beside it.

    Args:
        left: how many are left.
        of: of how many.
        dropped: percentages that are gone, a layer each.
    """

    left: int
    of: int
    dropped: str


TABLE_1: Mapping[str, Printed] = {
    "cifar10-vgg-x1-sparse-diag": Printed(18_610, 62_270, "30-61-40-52-49-35-57-69-84-80-89-90"),
    "cifar10-vgg-x1-sparse-mn": Printed(27_764, 62_270, "31-41-29-36-62-33-21-54-64-92-94-29"),
    "cifar10-vgg-x1-sparse-mn-diagonal": Printed(
        19_936, 62_270, "37-65-32-18-51-44-48-74-79-84-80-88"
    ),
}
"""Weights by recipe; the total has those of the dense layer, which has no percentage."""

TABLE_2: Mapping[str, Printed] = {
    "weights": Printed(120_884, 246_940, "22-50-44-32-33-29-24-42-56-74-91-90"),
    "columns": Printed(3_120, 4_527, "0-18-19-1-4-1-1-4-32-59-91-85"),
    "rows": Printed(413, 540, "0-20-0-7-7-0-7-24-40-65-85-0"),
}
"""Of the network of twice the width, by what is zeroed; its rows are our columns.

Only the total of weights has the dense layer.
"""
