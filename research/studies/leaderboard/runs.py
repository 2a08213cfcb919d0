"""Runs of the leaderboard by task, method and seed: differences and ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from research.studies.defaults.runs import Difference, difference
from research.studies.leaderboard.methods import METHODS
from research.studies.leaderboard.peers import PEERS
from research.studies.leaderboard.tasks import TASKS

PLAIN, OURS = "plain", "k-tied"
BASELINES = ("MC dropout", "ensemble of 5")
ALL_METHODS = (*METHODS, *PEERS)
Record = Mapping[str, Any]


class Runs:
    """What the files of a folder hold.

    Args:
        records: One per run; a refused one has no test scores.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._found: dict[tuple[str, str], dict[int, Record]] = {}
        for record in records:
            by_seed = self._found.setdefault((record["task"], record["method"]), {})
            by_seed[record["seed"]] = record

    @classmethod
    def read(cls, folder: Path) -> Runs:
        """Read all files of a folder of results."""
        files = sorted(folder.glob("*/*.json"))
        return cls(json.loads(file.read_text(encoding="utf-8")) for file in files)

    def tasks(self, groups: Sequence[str] = ()) -> list[str]:
        """Return the tasks that were run, in the order of the study, perhaps of some groups."""
        run = {task for task, _ in self._found}
        return [
            name for name in TASKS if name in run and (not groups or TASKS[name].group in groups)
        ]

    def methods(self, task: str) -> list[str]:
        """Return the methods that were run on a task, refused ones included."""
        return [name for name in ALL_METHODS if (task, name) in self._found]

    def of(self, task: str, method: str) -> dict[int, Record]:
        """Return finished runs by seed."""
        found = self._found.get((task, method), {})
        return {seed: record for seed, record in sorted(found.items()) if "test" in record}

    def refusal(self, task: str, method: str) -> str | None:
        """Return why another library could not train the network of a task."""
        for record in self._found.get((task, method), {}).values():
            if "refused" in record:
                return str(record["refused"])
        return None

    def values(self, task: str, method: str, score: str) -> dict[int, float]:
        """Return a score by seed, where runs have it."""
        return {
            seed: record["test"][score]
            for seed, record in self.of(task, method).items()
            if score in record["test"]
        }

    def gap(self, task: str, method: str, other: str, score: str) -> Difference | None:
        """Return the mean difference between two methods over the seeds that both have."""
        ours, theirs = (self.values(task, name, score) for name in (method, other))
        return difference([ours[seed] - theirs[seed] for seed in ours if seed in theirs])

    def common(self, task: str, score: str, methods: Sequence[str]) -> dict[str, float] | None:
        """Return means over the seeds that all methods have; ``None`` if one is missing.

        A method that refused the task is last.
        """
        found = {name: self.values(task, name, score) for name in methods}
        refused = {name for name in methods if not found[name] and self.refusal(task, name)}
        ran = [by_seed for name, by_seed in found.items() if name not in refused]
        seeds = set.intersection(*map(set, ran)) if ran else set()
        if not seeds:
            return None
        sign = -1 if score == "auroc" else 1
        return {
            name: float("inf") if name in refused else sign * fmean(found[name][s] for s in seeds)
            for name in methods
        }

    def mean_ranks(
        self, score: str, methods: Sequence[str], groups: Sequence[str] = ()
    ) -> tuple[dict[str, float], int]:
        """Return the mean rank of every method over tasks that all have, and their number."""
        ranks: list[dict[str, float]] = []
        for task in self.tasks(groups):
            values = self.common(task, score, methods)
            if values is not None:
                ranks.append(ranked(values))
        means = {name: fmean(each[name] for each in ranks) for name in methods} if ranks else {}
        return means, len(ranks)


def ranked(values: Mapping[str, float]) -> dict[str, float]:
    """Return ranks from 1, the lowest value first; equal values share the mean of theirs.

    Example:
        >>> ranked({"a": 0.3, "b": 0.1, "c": 0.3})
        {'a': 2.5, 'b': 1.0, 'c': 2.5}
    """
    every = list(values.values())
    return {
        name: sum(other < value for other in every) + (1 + every.count(value)) / 2
        for name, value in values.items()
    }
