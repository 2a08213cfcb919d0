"""What was asked of the recommended recipe, and which tasks decide it."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any, NamedTuple

from research.publishing.tables import markdown_table
from research.studies.defaults.runs import Difference
from research.studies.leaderboard.peers import PEERS
from research.studies.leaderboard.runs import ALL_METHODS, BASELINES, OURS, PLAIN, Runs
from research.studies.leaderboard.tasks import TASKS

Costs = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Measured steps by task and method."""
NUMBER_GROUPS = ("UCI, standard splits", "UCI, gap splits")
GROUPS = {
    "classes": ("images", "text"),
    "numbers": NUMBER_GROUPS,
    "all": (),
    **{group: (group,) for group in NUMBER_GROUPS},
}
RANKED = {"nll": "NLL", "calibration": "calibration", "auroc": "OOD AUROC"}
SEVERAL_NETWORKS = ("ensemble of 5",)
NOT_RUN = "Not run yet."
_HALF_A_POINT, _LARGEST_STEP, _COVERAGE = 0.5, 1.3, (0.87, 0.93)
_CLEAR = 2.0
"""Standard errors from which a difference is decided."""


class Wish(NamedTuple):
    """A score that is to be lower than the plain network's, or higher with sign -1."""

    title: str
    score: str
    allowed: float = 0.0
    sign: int = 1


WISHES = (
    Wish("NLL lower than plain", "nll"),
    Wish("calibration error lower than plain", "calibration"),
    Wish("accuracy at most half a point behind plain", "accuracy", _HALF_A_POINT, -1),
)


class Decided(NamedTuple):
    """Differences from the plain network, by what two standard errors decide."""

    better: dict[str, Difference]
    undecided: dict[str, Difference]
    worse: dict[str, Difference]


def decide(runs: Runs, wish: Wish) -> Decided:
    """Sort the tasks by the difference of the recommended recipe from the plain network.

    A single pair has no error and decides nothing.
    """
    found = Decided({}, {}, {})
    for task in runs.tasks():
        gap = runs.gap(task, OURS, PLAIN, wish.score)
        if gap is None:
            continue
        beyond = wish.sign * gap.mean - wish.allowed
        clear = gap.error is not None and abs(beyond) > _CLEAR * gap.error
        side = (found.better if beyond < 0 else found.worse) if clear else found.undecided
        side[task] = gap
    return found


def decided(runs: Runs) -> str:
    """Return the tasks on which every wish is fulfilled, undecided or missed, with numbers."""
    lines = []
    for wish in WISHES:
        found = decide(runs, wish)
        if not any(found):
            continue
        for name, side in found._asdict().items():
            each = "; ".join(f"{TASKS[task].title} {gap}" for task, gap in side.items())
            lines.append([wish.title, name, str(len(side)), each or "–"])
    return markdown_table(["asked", "verdict", "tasks", "differences"], lines) if lines else NOT_RUN


def ranked_methods(runs: Runs, *, one_network: bool = False) -> list[str]:
    """Return the methods that have every seed of most tasks; others would leave little to rank."""
    counts = dict.fromkeys(ALL_METHODS, 0)
    for task in runs.tasks():
        seeds = runs.of(task, PLAIN).keys()
        for name in runs.methods(task):
            counts[name] += bool(runs.refusal(task, name)) or seeds <= runs.of(task, name).keys()
    found = [name for name, count in counts.items() if 2 * count > max(counts.values())]
    return [name for name in found if not (one_network and name in SEVERAL_NETWORKS)]


def verdicts(runs: Runs, costs: Costs) -> str:
    """Return what was asked of the recommended recipe, and by how much it falls short."""
    lines = [
        *(_everywhere(runs, wish) for wish in WISHES),
        *_rank_verdicts(runs),
        _step_verdict(costs),
        *(_coverage_verdict(runs, group) for group in NUMBER_GROUPS),
    ]
    return markdown_table(["asked of k-tied by default", "verdict", "measured"], lines)


def _everywhere(runs: Runs, wish: Wish) -> list[str]:
    """Compare with plain on every task."""
    title, found = f"{wish.title} on every task", decide(runs, wish)
    known = found.better | found.undecided | found.worse
    if not known:
        return [title, "undecided", NOT_RUN]
    held = sum(wish.sign * gap.mean <= wish.allowed for gap in known.values())
    said = f"in the mean on {held} of {len(known)} tasks; beyond two standard errors: "
    said += ", ".join(f"{name} {len(side)}" for name, side in found._asdict().items())
    if found.worse:
        said += f" ({'; '.join(f'{TASKS[t].title} {gap}' for t, gap in found.worse.items())})"
    verdict = "**yes**" if held == len(known) else "no"
    return [title, verdict if found.worse or held == len(known) else "not shown", said]


def _rank_verdicts(runs: Runs) -> list[list[str]]:
    """Compare mean ranks with those of baselines and other libraries; all methods are ranked."""
    lines = []
    for limit in ("", ", one network"):
        methods = ranked_methods(runs, one_network=bool(limit))
        others = [name for name in methods if name in (PLAIN, *BASELINES, *PEERS)]
        for words, group in (("classes", "classes"), ("UCI", "numbers"), ("all tasks", "all")):
            for score, title in RANKED.items():
                found, count = runs.mean_ranks(score, methods, GROUPS[group])
                if not count or (score == "auroc" and words == "all tasks"):
                    continue
                ours = found[OURS]
                ahead = [f"{name} {found[name]:.2f}" for name in others if found[name] < ours]
                said = f"{ours:.2f} over {count} tasks"
                said += f"; ahead: {', '.join(ahead)}" if ahead else "; none of them is ahead"
                wish = f"mean rank in {title} better than baselines and other libraries: {words}"
                lines.append([wish + limit, "no" if ahead else "**yes**", said])
    return lines


def _step_verdict(costs: Costs) -> list[str]:
    wish = f"a step of at most {_LARGEST_STEP} plain ones"
    if not costs:
        return [wish, "undecided", "Not measured yet."]
    steps = {task: found[OURS]["median"] for task, found in costs.items()}
    said = ", ".join(f"{TASKS[task].title} {median:.2f}" for task, median in steps.items())
    return [wish, "no" if max(steps.values()) > _LARGEST_STEP else "**yes**", said]


def _coverage_verdict(runs: Runs, group: str) -> list[str]:
    low, high = _COVERAGE
    wish = f"coverage of 90% intervals from {100 * low:.0f} to {100 * high:.0f}%: {group}"
    found = {
        task: 100 * fmean(values.values())
        for task in runs.tasks([group])
        if (values := runs.values(task, OURS, "coverage"))
    }
    if not found:
        return [wish, "undecided", NOT_RUN]
    outside = {t: v for t, v in found.items() if not 100 * low <= v <= 100 * high}
    said = (
        f"{len(found) - len(outside)} of {len(found)} sets, {fmean(found.values()):.1f}% on average"
    )
    if outside:
        said += ". Not " + "; ".join(f"{TASKS[t].title} {v:.1f}%" for t, v in outside.items())
    return [wish, "no" if outside else "**yes**", said]
