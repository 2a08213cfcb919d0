"""Tables of docs/leaderboard.md from results/leaderboard."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from research.publishing.cells import averaged
from research.publishing.pages import Makers
from research.publishing.study_file import read_study
from research.publishing.tables import markdown_table
from research.studies.leaderboard import shortfall
from research.studies.leaderboard.runs import ALL_METHODS, PLAIN, Runs
from research.studies.leaderboard.tasks import TASKS
from research.studies.leaderboard.verdicts import (
    GROUPS,
    NOT_RUN,
    RANKED,
    Costs,
    decided,
    ranked_methods,
    verdicts,
)

COSTS = "costs.json"
NETWORKS = {"MC dropout": "2, one per rate", "ensemble of 5": "5"}
SAME_STEP = ("plain", *(name for name in ALL_METHODS if "laplace" in name))
"""Methods that train the plain network, and nothing else by steps."""


def makers(folder: Path) -> Makers:
    """Return what makes every block."""
    runs, costs = Runs.read(folder), read_costs(folder)
    searched = {name: folder.parent / f"{name}.json" for name in ("defaults", "variants")}
    return {
        "leaderboard-verdicts": lambda _: verdicts(runs, costs),
        "leaderboard-classes": lambda group: classes(runs, group),
        "leaderboard-numbers": lambda what: numbers(runs, *what.split("; ")),
        "leaderboard-differences": lambda what: differences(runs, *what.split("; ")),
        "leaderboard-decided": lambda _: decided(runs),
        "leaderboard-ranks": lambda words: ranks(runs, costs, words),
        "leaderboard-shortfall": lambda _: shortfall.amounts(runs),
        "leaderboard-tried": lambda _: shortfall.tried(
            *(read_study(file, f"studies {name}") for name, file in searched.items())
        ),
        "leaderboard-costs": lambda _: costs_table(costs),
        "leaderboard-runs": lambda _: about(runs),
    }


def read_costs(folder: Path) -> Costs:
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
    return markdown_table(header, lines, text=2) if lines else NOT_RUN


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
    return markdown_table(["method", *titles], lines, text=1) if lines else NOT_RUN


def differences(runs: Runs, groups: str, score: str) -> str:
    """Return differences from the plain network, paired by seed, with standard errors."""
    tasks = runs.tasks(GROUPS[groups])
    lines = []
    for method in ALL_METHODS[1:]:
        gaps = [runs.gap(task, method, PLAIN, score) for task in tasks]
        if any(gaps):
            lines.append([method, *(f"{gap} ({gap.pairs})" if gap else "–" for gap in gaps)])
    header = ["method", *(TASKS[task].title for task in tasks)]
    return markdown_table(header, lines, text=1) if lines else NOT_RUN


def ranks(runs: Runs, costs: Costs, words: str) -> str:
    """Return mean ranks over the tasks that all ranked methods were run on, and their cost.

    ``classes; one network`` ranks without the methods that train several networks at once.
    """
    group, _, limit = words.partition("; ")
    methods = ranked_methods(runs, one_network=bool(limit))
    columns = {name: runs.mean_ranks(name, methods, GROUPS[group]) for name in RANKED}
    columns = {name: found for name, found in columns.items() if found[1]}
    if not columns:
        return NOT_RUN
    header = [f"{RANKED[name]} ({count} tasks)" for name, (_, count) in columns.items()]
    lines = [
        [each, *(f"{found[each]:.2f}" for found, _ in columns.values()), *_cost(runs, costs, each)]
        for each in methods
    ]
    header += ["networks trained", "step, plain = 1", "passes"]
    return markdown_table(["method", *header], lines, text=1)


def _cost(runs: Runs, costs: Costs, method: str) -> list[str]:
    """Return the networks that a method trains, its median step over tasks, and its passes."""
    steps = [found[method]["median"] for found in costs.values() if method in found]
    passes = {r["passes"] for t in runs.tasks() for r in runs.of(t, method).values()}
    step = "1.00" if method in SAME_STEP else f"{median(steps):.2f}" if steps else "–"
    return [NETWORKS.get(method, "1"), step, ", ".join(map(str, sorted(passes)))]


def costs_table(costs: Costs) -> str:
    """Return training steps relative to the plain network."""
    if not costs:
        return "Not measured yet."
    methods = [name for name in ALL_METHODS if any(name in found for found in costs.values())]
    lines = [
        [name, *(_step(found[name]) if name in found else "–" for found in costs.values())]
        for name in methods
    ]
    return markdown_table(["method", *(TASKS[task].title for task in costs)], lines, text=1)


def _step(cost: Mapping[str, Any]) -> str:
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
