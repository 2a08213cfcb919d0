"""Pages whose tables and pictures are made from files of results, inside prose that is written.

A block stands between ``<!-- KIND: ARGUMENT -->`` and ``<!-- end -->``; its contents are made anew
and the rest of the page is left alone.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from leanbayes.errors import nearest
from leanbayes.lab.files import write_text

Makers = Mapping[str, Callable[[str], str]]
"""What makes a block, from its argument, by kind."""

_BLOCK = re.compile(r"(<!-- (?P<kind>[\w-]+): (?P<argument>.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def page_of(file: str, **values: Any) -> str:
    """Return the text in ``page.md`` beside a file, with values for its ``{placeholders}``."""
    return Path(file).with_name("page.md").read_text(encoding="utf-8").format(**values)


def refreshed(text: str, makers: Makers) -> str:
    r"""Return the text with every block made anew.

    Example:
        >>> page = "Sum:\n<!-- add: 1 2 -->\nold\n<!-- end -->\n"
        >>> print(refreshed(page, {"add": lambda numbers: str(sum(map(int, numbers.split())))}))
        Sum:
        <!-- add: 1 2 -->
        3
        <!-- end -->
        <BLANKLINE>
    """

    def made(block: re.Match[str]) -> str:
        kind = block["kind"]
        if kind not in makers:
            raise ValueError(f"block {kind!r} is unknown{nearest(kind, makers)}")
        return f"{block[1]}{makers[kind](block['argument']).rstrip()}\n{block[4]}"

    return _BLOCK.sub(made, text)


def refresh(page: Path, makers: Makers) -> Path:
    """Make every block of a file anew."""
    if not page.is_file():
        raise FileNotFoundError(f"page {page} does not exist; write its prose and blocks first")
    return write_text(page, refreshed(page.read_text(encoding="utf-8"), makers))
