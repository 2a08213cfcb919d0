"""Verdicts on claims, computed from the numbers that the claims rest on.

A claim has conditions, ``; `` between them: ``TERM < TERM``, ``TERM > TERM`` or ``TERM ≈ TERM ±
MARGIN``. A term names a number of ours as in :mod:`.filled_claims`, is a number itself, or is
``FACTOR × TERM``. A condition after ``given`` must hold before the others say anything. What cannot
be a number is written: ``yes: REASON``, ``in part: REASON``, ``undecided: REASON``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from research.publishing.cells import Cell

FindCell = Callable[[str], Cell]
_SIGNS = (" < ", " > ", " ≈ ")
_MANY_ERRORS = 2
_TOO_FEW = {1: "one seed", 2: "two seeds"}
"""Seeds too few to separate two networks: the error of a mean of two is hardly known."""


class Word(StrEnum):
    """What became of a claim."""

    YES = "yes"
    PART = "in part"
    NO = "no"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Verdict:
    """What became of a claim, and why.

    Args:
        word: the verdict.
        why: what it rests on, or what is missing; may be empty.
        seeds: the fewest seeds of a number behind it; ``None`` if nothing was trained.
    """

    word: Word
    why: str = ""
    seeds: int | None = None

    def __str__(self) -> str:
        """Return bold if it is decided by several seeds, or by something that has none."""
        decided = self.word is not Word.UNDECIDED and self.seeds != 1
        word = f"**{self.word}**" if decided else str(self.word)
        alone = self.seeds == 1 and self.word is not Word.UNDECIDED
        return ": ".join(filter(None, (f"{word}, one network" if alone else word, self.why)))


def judged(conditions: str, cell: FindCell) -> Verdict:
    """Return the verdict on a claim.

    Example:
        >>> cells = {"a nll": Cell(0.1, 0.01, seeds=3), "b nll": Cell(0.2, 0.01, seeds=3)}
        >>> str(judged("a nll < b nll", cells.get)), str(judged("a nll > b nll", cells.get))
        ('**yes**', '**no**')
        >>> str(judged("a nll ≈ b nll ± 0.01", cells.get))
        '**no**'
    """
    word, colon, why = conditions.partition(": ")
    if colon and word in set(Word):
        return Verdict(Word(word), why)
    parts = conditions.split("; ")
    needs = [part.removeprefix("given ") for part in parts if part.startswith("given ")]
    if not all(_is_so(need, cell) for need in needs):
        return Verdict(Word.UNDECIDED, "one training failed", 1)
    return _together([_outcome(part, cell) for part in parts if not part.startswith("given ")])


def _together(outcomes: Sequence[Verdict]) -> Verdict:
    words = [outcome.word for outcome in outcomes]
    seeds = min((o.seeds for o in outcomes if o.seeds is not None), default=None)
    reasons = list(dict.fromkeys(o.why for o in outcomes if o.why))
    if len(set(words)) == 1:
        return Verdict(words[0], "; ".join(reasons), seeds)
    counted = ((words.count(word), word) for word in Word)
    counts = ", ".join(f"{n} {word}" for n, word in counted if n)
    because = f" ({'; '.join(reasons)})" if reasons else ""
    word = Word.PART if {Word.YES, Word.PART} & set(words) else Word.NO
    return Verdict(word, f"of {len(words)} comparisons {counts}{because}", seeds)


def _sides(condition: str) -> tuple[str, str, str, float]:
    """Left side, sign, right side and margin."""
    sign = next(sign for sign in _SIGNS if sign in condition)
    left, _, right = condition.partition(sign)
    right, _, margin = right.partition(" ± ")
    return left, sign, right, float(margin or 0.0)


def _is_so(condition: str, cell: FindCell) -> bool:
    """Return whether the numbers are so, however uncertain they are."""
    left, sign, right, _ = _sides(condition)
    first, second = (_term(side, cell).ours for side in (left, right))
    return first is not None and second is not None and (first < second) == (sign == " < ")


def _outcome(condition: str, cell: FindCell) -> Verdict:
    """Of one condition."""
    left, sign, right, margin = _sides(condition)
    first, second = (_term(side, cell) for side in (left, right))
    seeds = min((c.seeds for c in (first, second) if c.seeds is not None), default=None)
    if first.ours is None or second.ours is None:
        return Verdict(Word.UNDECIDED, "not run")
    networks = {name for name in map(network_of, (left, right)) if name}
    if seeds in _TOO_FEW and len(networks) > 1:
        return Verdict(Word.UNDECIDED, _TOO_FEW[seeds], seeds)
    difference = first.ours - second.ours
    beyond = abs(difference) - margin
    if abs(beyond) <= _MANY_ERRORS * math.hypot(first.error or 0.0, second.error or 0.0):
        return Verdict(Word.UNDECIDED, "within two standard errors", seeds)
    holds = beyond < 0 if sign == " ≈ " else (difference < 0) == (sign == " < ")
    return Verdict(Word.YES if holds else Word.NO, "", seeds)


def terms_of(conditions: str) -> list[str]:
    """Return the terms of ours that conditions name.

    Example:
        >>> terms_of("a nll < 2 × b nll; a nll > 0.5")
        ['a nll', 'b nll', 'a nll']
    """
    if conditions.partition(": ")[0] in set(Word):
        return []
    sides = []
    for condition in conditions.split("; "):
        left, _, right, _ = _sides(condition.removeprefix("given "))
        sides += [left, right]
    return [term for _, term in map(_factor_and_term, sides) if term]


def _factor_and_term(side: str) -> tuple[float, str]:
    factor, times, term = side.rpartition(" × ")
    if times:
        return float(factor), term
    try:
        return float(side), ""
    except ValueError:
        return 1.0, side


def _term(side: str, cell: FindCell) -> Cell:
    factor, term = _factor_and_term(side)
    if not term:
        return Cell(factor)
    found = cell(term)
    if found.ours is None:
        return found
    return Cell(factor * found.ours, factor * (found.error or 0.0), seeds=found.seeds)


def network_of(side: str) -> str:
    """Return the trained network that a term is of: two numbers of one network share its seed."""
    _, term = _factor_and_term(side)
    where = term.rpartition(" ")[0]
    kind, _, part = where.partition("/")
    return part if kind in _STUDIES else kind


_STUDIES = (
    *("after", "attack", "compaction", "natural", "phases", "policy"),
    *("rank1", "sparsity", "theorem", "vae"),
)
"""First words of terms whose second names the network."""
