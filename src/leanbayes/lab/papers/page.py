"""Pages whose tables and pictures are made from files of results, inside prose that is written.

A block stands between ``<!-- KIND: ARGUMENT -->`` and ``<!-- end -->``; a command makes its
contents anew and leaves the rest of the page alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from leanbayes.errors import nearest
from leanbayes.lab.files import write_text

__all__ = ["Blocks", "refresh", "refreshed"]

Blocks = Mapping[str, Callable[[str], str]]
"""What makes a block, from its argument, by kind."""

_BLOCK = re.compile(r"(<!-- (?P<kind>[\w-]+): (?P<argument>.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def refreshed(text: str, blocks: Blocks) -> str:
    r"""The text with every block made anew.

    Example:
        >>> page = "Sum:\n<!-- add: 1 2 -->\nold\n<!-- end -->\n"
        >>> print(refreshed(page, {"add": lambda numbers: str(sum(map(int, numbers.split())))}))
        Sum:
        <!-- add: 1 2 -->
        3
        <!-- end -->
        <BLANKLINE>
    """

    def made(found: re.Match[str]) -> str:
        kind = found["kind"]
        if kind not in blocks:
            raise ValueError(f"block {kind!r} is unknown{nearest(kind, blocks)}")
        return f"{found[1]}{blocks[kind](found['argument']).rstrip()}\n{found[4]}"

    return _BLOCK.sub(made, text)


def refresh(page: str | Path, blocks: Blocks) -> Path:
    """Make every block of a file anew."""
    page = Path(page)
    if not page.is_file():
        raise FileNotFoundError(f"page {page} does not exist; write its prose and blocks first")
    return write_text(page, refreshed(page.read_text(encoding="utf-8"), blocks))
