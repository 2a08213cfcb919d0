"""Sentences whose numbers are made from files of results.

``{KIND: TERM}`` or ``{KIND: TERM / TERM}`` stands for a number of ours, ``{printed KIND: …}`` for
what the paper prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from leanbayes.errors import choose
from papers.tools.rows import Cell, count

__all__ = ["filled"]

_NUMBER = re.compile(r"\{(?P<printed>printed )?(?P<kind>\w+): (?P<terms>[^}]*)\}")


def filled(sentence: str, cell: Callable[[str], Cell]) -> str:
    """The sentence with its numbers.

    Args:
        sentence: what is to be said.
        cell: the cell that a term names.

    Example:
        >>> cells = {"tied": Cell(0.5, None, 0.4), "full": Cell(2.0, None, 0.5)}
        >>> filled("{value: tied}, {ratio: full / tied}; {printed change: tied / full}", cells.get)
        '0.500, 4; −20.0 %'
    """

    def number(match: re.Match[str]) -> str:
        terms, printed = match["terms"].split(" / "), bool(match["printed"])
        kind = "printed" if printed and match["kind"] == "value" else match["kind"]
        values = [_known(term, cell(term), printed) for term in terms]
        return choose("kind of number", kind, _KINDS)(*values)

    return _NUMBER.sub(number, sentence)


def _known(term: str, cell: Cell, printed: bool) -> float:
    value = cell.published if printed else cell.ours
    if value is None:
        raise ValueError(f"{term!r} has no {'published' if printed else 'measured'} number")
    return value


def _value(value: float) -> str:
    """Three digits, or all before the point; with a typographic minus."""
    if isinstance(value, int):
        return count(value)
    written = f"{value:#.3g}".removesuffix(".") if abs(value) < 1000 else f"{value:.0f}"
    return written.replace("-", "−")


def _printed(value: float) -> str:
    """All digits that the paper has."""
    return f"{value:g}"


def _ratio(value: float, other: float) -> str:
    """Two digits are enough for a factor."""
    return f"{float(f'{value / other:.2g}'):,g}".replace(",", " ")


def _percent(value: float, whole: float = 1.0) -> str:
    return f"{100 * value / whole:.4g} %"


def _change(value: float, other: float) -> str:
    return f"{100 * (value / other - 1):+.1f} %".replace("-", "−")


_KINDS: Mapping[str, Callable[..., str]] = {
    "value": _value,
    "printed": _printed,
    "ratio": _ratio,
    "percent": _percent,
    "change": _change,
}
