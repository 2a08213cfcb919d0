"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["table"]


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table whose first columns are text and whose others are numbers.

    Example:
        >>> print(table(("method", "cost"), [("k-tied", "1.2")]))
        | method | cost |
        |---|--:|
        | k-tied | 1.2 |
    """
    rule = ["---"] * left + ["--:"] * (len(headings) - left)
    lines = [headings, rule, *rows]
    marks = ("|" if line is rule else " | " for line in lines)
    return "\n".join(
        f"|{mark.strip().join(line)}|" if line is rule else f"| {mark.join(line)} |"
        for line, mark in zip(lines, marks, strict=True)
    )
