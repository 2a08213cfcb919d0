"""Printed numbers of sparse networks [matrix normal, Tables 1 and 2]."""

from collections.abc import Mapping
from typing import NamedTuple

from research.publishing.paper import read_published

ITERATION = 2.0
"""How many times as long as with independent weights an iteration takes (section 7)."""


class Printed(NamedTuple):
    """How many are left of how many, and percentages that are gone, a layer each."""

    left: int
    of: int
    dropped: str


TABLE_1, TABLE_2 = tuple[Mapping[str, Printed], ...](
    {name: Printed(**row) for name, row in table.items()}
    for table in read_published(__file__).values()
)
