"""Blocks of its own that a paper has beside those that all papers have."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from research.publishing.cells import Cell

NOT_RUN = "*Not yet run.*"
"""What stands in a block whose results are not there."""

Made = TypeVar("Made")


class Picture(NamedTuple):
    """A picture of a page.

    Attributes:
        name: of its file, without the ending.
        png: its bytes.
        more: what its caption says beyond that of the block.
    """

    name: str
    png: bytes
    more: str = ""


@dataclass(frozen=True)
class OwnBlocks:
    """What makes the blocks of one study of a paper, by kind.

    Where a file of results is missing, a table says so, a picture is left out, and a number is not
    known. What is misspelled is an error.

    Args:
        tables: from a block's argument to Markdown.
        pictures: from a block's argument, without the caption behind ``|``, to pictures.
        cells: what claims may name, by the first word of a term: ``WORD/PART COLUMN`` is
            ``cells[WORD](PART, COLUMN)``.
        studies: the command of ``python -m research papers`` that measures a run of a table, by
            kind; these tables name recipes and get commands below.
    """

    tables: Mapping[str, Callable[[str], str]] = field(default_factory=dict)
    pictures: Mapping[str, Callable[[str], Iterable[Picture]]] = field(default_factory=dict)
    cells: Mapping[str, Callable[[str, str], Cell]] = field(default_factory=dict)
    studies: Mapping[str, str] = field(default_factory=dict)


MakeBlocks = Callable[[Path], OwnBlocks]
"""The blocks of a study, from the folder of the paper's results."""


def where_run(make: Callable[..., Made], otherwise: Made) -> Callable[..., Made]:
    """Return a function that gives something else where a file of results is missing."""

    def made(*arguments: str) -> Made:
        try:
            return make(*arguments)
        except FileNotFoundError:
            return otherwise

    return made
