"""Tables and verdicts of docs/leaderboard.md from results/leaderboard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from research.publishing.cells import averaged
from research.publishing.pages import Makers
from research.publishing.tables import markdown_table
from research.studies.leaderboard.peers import PEERS
from research.studies.leaderboard.runs import ALL_METHODS, BASELINES, OURS, PLAIN, Runs
from research.studies.leaderboard.tasks import TASKS

COSTS = "costs.json"
CLASS_GROUPS = ("images", "text")
NUMBER_GROUPS = ("UCI, standard splits", "UCI, gap splits")
_HALF_A_POINT, _LARGEST_STEP, _COVERAGE = 0.5, 1.3, (0.87, 0.93)
_RANKED = {"nll": "NLL", "calibration": "calibration", "auroc": "OOD AUROC"}
_NOT_RUN = "Not run yet."


def makers(folder: Path) -> Makers:
    """Return what makes every block."""
    runs, costs = Runs.read(folder), read_costs(folder)
    return {
        "leaderboard-verdicts": lambda _: verdicts(runs, costs),
        "leaderboard-classes": lambda group: classes(runs, group),
        "leaderboard-numbers": lambda what: numbers(runs, *what.split("; ")),
        "leaderboard-differences": lambda what: differences(runs, *what.split("; ")),
        "leaderboard-ranks": lambda groups: ranks(runs, groups),
        "leaderboard-costs": lambda _: costs_table(costs),
        "leaderboard-runs": lambda _: about(runs),
    }


def read_costs(folder: Path) -> dict[str, Any]:
    """Return measured steps by task and method; empty if they were not measured."""
    file = folder / COSTS
    return dict(json.loads(file.read_text(encoding="utf-8"))["steps"]) if file.exists() else {}


def _mean(values: Sequence[float], factor: float, places: int) -> str:
    return f"{factor * fmean(values):.{places}f}" if values else "–"


def classes(runs: Runs, group: str) -> str:
    """Return scores of every method on every task of a group, means over seeds."""
    scores = {"nll": (1, 3), "calibration": (100, 1), "accuracy": (1, 1), "auroc": (100, 1),
              "corrupted_nll": (1, 2)}  # fmt: skip
    lines = []
    for task in runs.tasks([group]):
        for method in runs.methods(task):
            found = runs.of(task, method)
            if not found:
                lines.append([TASKS[task].title, method, "refused", *["–"] * 7])
                continue
            means = [
                _mean([*runs.values(task, method, score).values()], *how)
                for score, how in scores.items()
            ]
            last = next(iter(found.values()))
            sizes = [f"{last['parameters']:,}", str(last["passes"])]
            lines.append([TASKS[task].title, method, _seeds(found), *means, *sizes])
    header = ["task", "method", "seeds", "NLL", "ECE (%)", "accuracy (%)", "OOD AUROC (%)"]
    header += ["corrupted NLL", "parameters", "passes"]
    return markdown_table(header, lines, text=2) if lines else _NOT_RUN


def _seeds(found: Any) -> str:
    return ", ".join(map(str, found))


def numbers(runs: Runs, group: str, score: str) -> str:
    """Return one score of every method on every set of a group."""
    tasks = runs.tasks([group])
    lines = [
        [method, *(str(averaged([*runs.values(task, method, score).values()])) for task in tasks)]
        for method in ALL_METHODS
        if any(runs.of(task, method) for task in tasks)
    ]
    titles = [TASKS[task].title.removesuffix(", gap") for task in tasks]
    return markdown_table(["method", *titles], lines, text=1) if lines else _NOT_RUN


def differences(runs: Runs, groups: str, score: str) -> str:
    """Return differences from the plain network, paired by seed, with standard errors."""
    tasks = runs.tasks(_groups(groups))
    lines = []
    for method in ALL_METHODS[1:]:
        gaps = [runs.gap(task, method, PLAIN, score) for task in tasks]
        if any(gaps):
            lines.append([method, *(f"{gap} ({gap.pairs})" if gap else "–" for gap in gaps)])
    header = ["method", *(TASKS[task].title for task in tasks)]
    return markdown_table(header, lines, text=1) if lines else _NOT_RUN


def _groups(words: str) -> Sequence[str]:
    known = {"classes": CLASS_GROUPS, "numbers": NUMBER_GROUPS, "all": ()}
    return known.get(words, (words,))


def _ranked_methods(runs: Runs) -> list[str]:
    """Return the methods that have every seed of most tasks; others would leave little to rank."""
    counts = dict.fromkeys(ALL_METHODS, 0)
    for task in runs.tasks():
        seeds = runs.of(task, PLAIN).keys()
        for name in runs.methods(task):
            counts[name] += bool(runs.refusal(task, name)) or seeds <= runs.of(task, name).keys()
    return [name for name, count in counts.items() if 2 * count > max(counts.values())]


def ranks(runs: Runs, words: str) -> str:
    """Return mean ranks over the tasks that all ranked methods were run on."""
    methods = _ranked_methods(runs)
    columns = {name: runs.mean_ranks(name, methods, _groups(words)) for name in _RANKED}
    columns = {name: found for name, found in columns.items() if found[1]}
    if not columns:
        return _NOT_RUN
    header = [f"{_RANKED[name]} ({count} tasks)" for name, (_, count) in columns.items()]
    lines = [[each, *(f"{found[each]:.2f}" for found, _ in columns.values())] for each in methods]
    return markdown_table(["method", *header], lines, text=1)


def verdicts(runs: Runs, costs: dict[str, Any]) -> str:
    """Return what was asked of the recommended recipe, and by how much it falls short."""
    lines = [
        _everywhere(runs, "NLL lower than plain on every task", "nll", 0.0),
        _everywhere(runs, "calibration error lower than plain on every task", "calibration", 0.0),
        _everywhere(runs, "accuracy at most half a point behind plain on every task", "accuracy",
                    _HALF_A_POINT, sign=-1),
        *_rank_verdicts(runs),
        _step_verdict(costs),
        *(_coverage_verdict(runs, group) for group in NUMBER_GROUPS),
    ]  # fmt: skip
    return markdown_table(["asked of k-tied by default", "verdict", "measured"], lines)


def _everywhere(runs: Runs, wish: str, score: str, allowed: float, *, sign: int = 1) -> list[str]:
    """Compare with plain on every task; higher is worse, or lower with sign -1."""
    gaps = {task: runs.gap(task, OURS, PLAIN, score) for task in runs.tasks()}
    known = {task: gap for task, gap in gaps.items() if gap is not None}
    if not known:
        return [wish, "undecided", _NOT_RUN]
    short = {task: gap for task, gap in known.items() if sign * gap.mean > allowed}
    said = f"{len(known) - len(short)} of {len(known)} tasks"
    if short:
        said += "; not " + ", ".join(f"{TASKS[task].title} {gap}" for task, gap in short.items())
    return [wish, "no" if short else "**yes**", said]


def _rank_verdicts(runs: Runs) -> list[list[str]]:
    """Compare mean ranks with those of baselines and other libraries; all methods are ranked."""
    methods = _ranked_methods(runs)
    others = [name for name in methods if name in (PLAIN, *BASELINES, *PEERS)]
    lines = []
    for words, groups in (("classes", CLASS_GROUPS), ("UCI", NUMBER_GROUPS), ("all tasks", ())):
        for score, title in _RANKED.items():
            found, count = runs.mean_ranks(score, methods, groups)
            if not count or (score == "auroc" and words == "all tasks"):
                continue
            ours = found[OURS]
            ahead = [f"{name} {found[name]:.2f}" for name in others if found[name] < ours]
            said = f"{ours:.2f} over {count} tasks"
            said += f"; ahead: {', '.join(ahead)}" if ahead else "; none of them is ahead"
            wish = f"mean rank in {title} better than baselines and other libraries: {words}"
            lines.append([wish, "no" if ahead else "**yes**", said])
    return lines


def _step_verdict(costs: dict[str, Any]) -> list[str]:
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
        return [wish, "undecided", _NOT_RUN]
    outside = {t: v for t, v in found.items() if not 100 * low <= v <= 100 * high}
    said = (
        f"{len(found) - len(outside)} of {len(found)} sets, {fmean(found.values()):.1f}% on average"
    )
    if outside:
        said += "; not " + ", ".join(f"{TASKS[t].title} {v:.1f}%" for t, v in outside.items())
    return [wish, "no" if outside else "**yes**", said]


def costs_table(costs: dict[str, Any]) -> str:
    """Return training steps relative to the plain network."""
    if not costs:
        return "Not measured yet."
    methods = [name for name in ALL_METHODS if any(name in found for found in costs.values())]
    lines = [
        [name, *(_step(found[name]) if name in found else "–" for found in costs.values())]
        for name in methods
    ]
    return markdown_table(["method", *(TASKS[task].title for task in costs)], lines, text=1)


def _step(cost: dict[str, Any]) -> str:
    return f"{cost['median']:.2f} ({cost['low']:.2f}–{cost['high']:.2f})"


def about(runs: Runs) -> str:
    """Return how many runs there are, and which library refused which network."""
    found = {(t, m): runs.of(t, m) for t in runs.tasks() for m in runs.methods(t)}
    hours = sum(r["duration"] for by_seed in found.values() for r in by_seed.values()) / 3600
    count = sum(map(len, found.values()))
    said = f"{count} runs on {len(runs.tasks())} tasks took {hours:.1f} hours of one thread."
    refused = [
        f"{method} on {TASKS[task].title}: {runs.refusal(task, method)}"
        for (task, method), by_seed in found.items()
        if not by_seed
    ]
    return said + (f" Refused: {'; '.join(refused)}." if refused else " No method refused a task.")
