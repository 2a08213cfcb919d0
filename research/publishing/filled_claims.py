"""Sentences whose numbers are made from files of results.

``{KIND: TERM}`` or ``{KIND: TERM / TERM}`` stands for a number of ours, ``{printed KIND: …}`` for
what the paper prints. ``{compared: TERM / TERM}`` is a word: higher, lower, or about the same if
two numbers of ours differ by less than two standard errors.
"""

import re
from collections.abc import Callable, Mapping

from leanbayes.errors import choose
from research.publishing.cells import Cell, about_equal, count

_NUMBER = re.compile(r"\{(?P<printed>printed )?(?P<kind>\w+): (?P<terms>[^}]*)\}")


class NotMeasuredError(ValueError):
    """A sentence names a number that no file of results has."""


def filled(sentence: str, cell: Callable[[str], Cell]) -> str:
    """Return the sentence with its numbers.

    Example:
        >>> cells = {"tied": Cell(0.5, None, 0.4), "full": Cell(2.0, None, 0.5)}
        >>> filled("{value: tied}, {ratio: full / tied}; {printed change: tied / full}", cells.get)
        '0.500, 4; −20.0%'
    """

    def number(match: re.Match[str]) -> str:
        terms, printed = match["terms"].split(" / "), bool(match["printed"])
        if match["kind"] == "compared":
            return _compared(*((cell(term), term) for term in terms))
        kind = "printed" if printed and match["kind"] == "value" else match["kind"]
        values = [_known(term, cell(term), printed) for term in terms]
        return choose("kind of number", kind, _KINDS)(*values)

    return _NUMBER.sub(number, sentence)


def _known(term: str, cell: Cell, printed: bool) -> float:
    value = cell.published if printed else cell.ours
    if value is None:
        kind = "published" if printed else "measured"
        raise NotMeasuredError(f"{term!r} has no {kind} number")
    return value


def _compared(first: tuple[Cell, str], second: tuple[Cell, str]) -> str:
    """Return how the first number is, seen from the second."""
    ours, other = (_known(term, cell, printed=False) for cell, term in (first, second))
    if about_equal(first[0], second[0]):
        return "about the same"
    return "higher" if ours > other else "lower"


def _value(value: float) -> str:
    """Return three digits, or all before the point; with a typographic minus."""
    if isinstance(value, int):
        return count(value)
    digits = "#.3g" if abs(value) < 1000 else ".0f" if abs(value) < 10_000 else ",.0f"
    return format(value, digits).removesuffix(".").replace("-", "−")


def _printed(value: float) -> str:
    """Return all digits that the paper has."""
    return f"{value:,g}" if abs(value) >= 10_000 else f"{value:g}"


def _ratio(value: float, other: float) -> str:
    """Two digits are enough for a factor."""
    return f"{float(f'{value / other:.2g}'):,g}"


def _percent(value: float, whole: float = 1.0) -> str:
    return f"{100 * value / whole:.4g}%"


def _change(value: float, other: float) -> str:
    change = round(100 * (value / other - 1), 1) + 0.0
    return f"{change:+.1f}%".replace("-", "−")


_KINDS: Mapping[str, Callable[..., str]] = {
    "value": _value,
    "printed": _printed,
    "ratio": _ratio,
    "percent": _percent,
    "change": _change,
}
