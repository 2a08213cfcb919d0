"""Blocks of its own that a paper has beside those that all papers have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from research.publishing.cells import Cell

NOT_RUN = "*Not yet run.*"
"""What stands in a block whose results are not there."""


class Picture(NamedTuple):
    """A picture of a page.

    Attributes:
        name: of its file, without the ending.
        caption: what stands below it.
        png: its bytes.
    """

    name: str
    caption: str
    png: bytes


@dataclass(frozen=True)
class OwnBlocks:
    """What makes the blocks of one study of a paper, by kind.

    Args:
        tables: from a block's argument to Markdown.
        pictures: from a block's argument to pictures.
        cells: what claims may name, by the first word of a term: ``WORD/PART COLUMN`` is
            ``cells[WORD](PART, COLUMN)``.
        studies: the command of ``python -m research papers`` that measures a run of a table, by
            kind; these tables name recipes and get commands below.
    """

    tables: Mapping[str, Callable[[str], str]] = field(default_factory=dict)
    pictures: Mapping[str, Callable[[str], Iterator[Picture]]] = field(default_factory=dict)
    cells: Mapping[str, Callable[[str, str], Cell]] = field(default_factory=dict)
    studies: Mapping[str, str] = field(default_factory=dict)


MakeBlocks = Callable[[Path], OwnBlocks]
"""The blocks of a study, from the folder of the paper's results."""


def where_run(make: MakeBlocks) -> MakeBlocks:
    """Return the same blocks for a page that is written before all of its results are there.

    Where a file of results is missing, a table says so, a picture is left out, and a number is not
    known. What is misspelled is an error as ever.
    """

    def patient(results: Path) -> OwnBlocks:
        own = make(results)
        return OwnBlocks(
            tables={kind: partial(_table, table) for kind, table in own.tables.items()},
            pictures={kind: partial(_pictures, draw) for kind, draw in own.pictures.items()},
            cells={word: partial(_cell, cell) for word, cell in own.cells.items()},
            studies=own.studies,
        )

    return patient


def _table(make: Callable[[str], str], argument: str) -> str:
    try:
        return make(argument)
    except FileNotFoundError:
        return NOT_RUN


def _pictures(draw: Callable[[str], Iterator[Picture]], argument: str) -> Iterator[Picture]:
    with suppress(FileNotFoundError):
        yield from draw(argument)


def _cell(find: Callable[[str, str], Cell], part: str, column: str) -> Cell:
    try:
        return find(part, column)
    except FileNotFoundError:
        return Cell()
