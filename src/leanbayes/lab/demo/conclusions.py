"""Conclusions: sentences computed from the results."""

from collections.abc import Sequence
from itertools import combinations

from leanbayes.lab.demo.results import Result, is_significant

_MOST_NAMES = 6


def conclusions(results: Sequence[Result]) -> list[str]:
    """One sentence on likelihood and one on detection; none about a family alone."""
    reference, *others = results
    return [_likelihood(reference, others), _detection(reference, others)] if others else []


def _likelihood(reference: Result, others: Sequence[Result]) -> str:
    better, worse = _apart(reference, others, "nll")
    near = len(others) - len(better) - len(worse)
    pairs = list(combinations([reference, *others], 2))
    equal = sum(not is_significant(a.minus(b, "nll")) for a, b in pairs)
    return (
        f"NLL: {near} of {len(others)} families are within two standard errors of the "
        f"{reference.name} network, {_listed(better)} better and {_listed(worse)} worse. "
        f"Of all {len(pairs)} pairs of families, {equal} are within two standard errors of each "
        "other."
    )


def _detection(reference: Result, others: Sequence[Result]) -> str:
    ranges = ", ".join(
        f"{_extreme(least)} to {_extreme(most)} for {kind} images"
        for kind, metric in (("inverted", "auroc_inverted"), ("pixel-shuffled", "auroc_shuffled"))
        for least, most in [_ends([reference, *others], metric)]
    )
    above = [
        _apart(reference, others, metric)[1] for metric in ("auroc_inverted", "auroc_shuffled")
    ]
    both = [name for name in above[0] if name in above[1]]
    return (
        f"OOD detection: the AUROC ranges from {ranges}. "
        f"{len(both)} of {len(others)} families detect both kinds better than the "
        f"{reference.name} network by more than two standard errors."
    )


def _apart(reference: Result, others: Sequence[Result], metric: str) -> tuple[list[str], list[str]]:
    """The names of those with less and with more of it, by more than two standard errors."""
    gaps = {other.name: other.minus(reference, metric) for other in others}
    apart = {name: gap.value for name, gap in gaps.items() if is_significant(gap)}
    return [n for n, gap in apart.items() if gap < 0], [n for n, gap in apart.items() if gap > 0]


def _ends(results: Sequence[Result], metric: str) -> list[tuple[float, str]]:
    ordered = sorted((result.score(metric).value, result.name) for result in results)
    return [ordered[0], ordered[-1]]


def _extreme(end: tuple[float, str]) -> str:
    return f"{end[0]:.2f} ({end[1]})"


def _listed(names: Sequence[str]) -> str:
    """How many, and which ones if they are few."""
    if not 0 < len(names) <= _MOST_NAMES:
        return str(len(names)) if names else "none"
    return f"{len(names)} ({'; '.join(names)})"
