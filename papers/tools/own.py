"""Blocks of its own that a paper has beside those that all papers have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from papers.tools.rows import Cell

__all__ = ["MakeBlocks", "OwnBlocks", "Picture"]


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
    """

    tables: Mapping[str, Callable[[str], str]] = field(default_factory=dict)
    pictures: Mapping[str, Callable[[str], Iterator[Picture]]] = field(default_factory=dict)
    cells: Mapping[str, Callable[[str, str], Cell]] = field(default_factory=dict)


MakeBlocks = Callable[[Path], OwnBlocks]
"""The blocks of a study, from the folder of the paper's results."""
