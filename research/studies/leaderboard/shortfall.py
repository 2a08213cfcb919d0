"""By how much the recommended recipe falls short, and what was tried on validation rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from research.publishing.tables import markdown_table
from research.studies.defaults.runs import rules
from research.studies.leaderboard.peers import PEERS
from research.studies.leaderboard.runs import BASELINES, OURS, Runs
from research.studies.leaderboard.tasks import TASKS
from research.studies.leaderboard.variants import EVERY, baseline_of, gaps
from research.studies.leaderboard.verdicts import GROUPS, NOT_RUN, WISHES, decide, ranked_methods

_WORDS = {"nll": "NLL", "calibration": "calibration error"}
_CLEAR = 2.0


def amounts(runs: Runs) -> str:
    """Return the clear losses to the plain network, and those to methods with a better rank."""
    lines = []
    for wish in WISHES:
        for task, gap in decide(runs, wish).worse.items():
            lines.append(f"- {wish.title}: not on {TASKS[task].title}, {gap}.")
    for words, group in (("image and text tasks", "classes"), ("UCI sets", "numbers")):
        for score, title in _WORDS.items():
            lines += _behind(runs, words, group, score, title)
    return "\n".join(lines) if lines else NOT_RUN


def _behind(runs: Runs, words: str, group: str, score: str, title: str) -> list[str]:
    methods = ranked_methods(runs)
    means, count = runs.mean_ranks(score, methods, GROUPS[group])
    lines = []
    for rival in (name for name in (*BASELINES, *PEERS) if count and name in means):
        if means[rival] >= means[OURS]:
            continue
        gaps = {task: runs.gap(task, OURS, rival, score) for task in runs.tasks(GROUPS[group])}
        known = [gap for gap in gaps.values() if gap is not None and gap.error is not None]
        lower = sum(gap.mean < -_CLEAR * (gap.error or 0) for gap in known)
        higher = sum(gap.mean > _CLEAR * (gap.error or 0) for gap in known)
        lines.append(
            f"- {rival} is ahead by {means[OURS] - means[rival]:.2f} ranks in {title} on {words}. "
            f"By two standard errors it has the lower {title} on {higher} of {len(known)}, "
            f"k-tied on {lower}."
        )
    return lines


def tried(search: Mapping[str, Any], variants: Mapping[str, Any]) -> str:
    """Return how many rules were tried, and what every variant changed on validation rows."""
    tasks = {part["task"] for part in search["parts"].values()}
    first = (
        f"The first search trained {len(rules(search))} k-tied rules on up to {len(tasks)} tasks. "
        f"The second one has {len(variants['parts'])} runs. It compares variants with the recipe "
        "before, and those that begin with *now* with the present one:"
    )
    lines = []
    for method in EVERY:
        counts = [_counts(variants, method, score) for score in _WORDS]
        if any(map(sum, counts)) and method != baseline_of(method):
            lines.append([method, *(" / ".join(map(str, each)) for each in counts)])
    header = [
        "recipe",
        *(f"{title}: tasks lower / undecided / higher" for title in _WORDS.values()),
    ]
    return f"{first}\n\n{markdown_table(header, lines, text=1)}"


def _counts(study: Mapping[str, Any], method: str, score: str) -> tuple[int, int, int]:
    """Return on how many tasks a variant is clearly lower, undecided and clearly higher."""
    found = [gap for gap in gaps(study, method, score).values() if gap is not None]
    sides = [
        0 if gap.error is None or abs(gap.mean) <= _CLEAR * gap.error else 1 if gap.mean > 0 else -1
        for gap in found
    ]
    return sides.count(-1), sides.count(0), sides.count(1)
