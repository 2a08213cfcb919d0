"""Tables of the UCI study: ours beside printed rows, ranks, paired differences, intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from leanbayes.lab.files import read_object
from research.publishing.cells import Cell, averaged
from research.publishing.tables import markdown_table
from research.studies.uci.published import DROPOUT, HMC, KFAC, LOG_LIKELIHOOD, RMSE, SETS, Printed


@dataclass(frozen=True)
class Measured:
    """Scores of one estimator on one set, by split.

    Args:
        splits: from the number of a split to its scores.
    """

    splits: Mapping[int, Mapping[str, float]]

    def cell(self, score: str) -> Cell:
        """Return mean and standard error over splits.

        Example:
            >>> str(Measured({0: {"rmse": 1.0}, 1: {"rmse": 3.0}}).cell("rmse"))
            '2.0 ± 1.0'
        """
        return averaged([part[score] for part in self.splits.values()])

    def minus(self, other: Measured, score: str) -> Cell:
        """Return the mean difference on the splits that both have, paired.

        Example:
            >>> a = Measured({0: {"rmse": 1.0}, 1: {"rmse": 3.0}})
            >>> b = Measured({0: {"rmse": 0.5}, 1: {"rmse": 2.0}})
            >>> str(a.minus(b, "rmse"))
            '0.75 ± 0.25'
        """
        both = sorted(self.splits.keys() & other.splits.keys())
        return averaged([self.splits[i][score] - other.splits[i][score] for i in both])


Key = tuple[str, str]
"""A posterior and its noise."""


def read_rows(folder: Path) -> dict[Key, dict[str, Measured]]:
    """Return what the files of a folder hold, by posterior and noise, then by set."""
    rows: dict[Key, dict[str, Measured]] = {}
    for path in sorted(folder.glob("*.json")):
        study = json.loads(path.read_text(encoding="utf-8"))
        settings, parts = study["settings"], study["parts"].values()
        key = settings["posterior"], settings["noise"]
        measured = Measured({part["seed"]: part for part in parts})
        rows.setdefault(key, {})[settings["data"]] = measured
    return rows


def makers(folder: Path) -> dict[str, Callable[[str], str]]:
    """Return what makes the blocks of the page, from the folder of results."""
    rows = read_rows(folder)
    return {
        "uci-likelihood": lambda noise: _beside(rows, LOG_LIKELIHOOD, "log_likelihood", noise),
        "uci-rmse": lambda noise: _beside(rows, RMSE, "rmse", noise),
        "uci-intervals": lambda noise: _per_set(
            rows, noise, lambda found: str(found.cell("coverage").percent())
        ),
        "uci-differences": lambda pair: _differences(rows, *pair.split(" − ")),
        "uci-ranks": lambda noise: _ranks(rows, noise),
        "uci-says": lambda noise: _says(rows, noise),
        "uci-seconds": lambda noise: _per_set(
            rows, noise, lambda found: str(found.cell("duration"))
        ),
        "uci-trials": lambda name: trials_table(folder.parent / name),
    }


def _ours(
    rows: Mapping[Key, Mapping[str, Measured]], noise: str
) -> Iterator[tuple[str, Mapping[str, Measured]]]:
    for (posterior, its_noise), sets in rows.items():
        if its_noise == noise:
            yield posterior, sets


def _per_set(
    rows: Mapping[Key, Mapping[str, Measured]], noise: str, shown: Callable[[Measured], str]
) -> str:
    """Return a line for each of ours, a number for each set."""
    lines = [[name, *_line(sets, shown)] for name, sets in _ours(rows, noise)]
    return markdown_table(["", *SETS], lines) if lines else "Not measured yet."


def _line(sets: Mapping[str, Measured], shown: Callable[[Measured], str]) -> list[str]:
    return [shown(sets[name]) if name in sets else "–" for name in SETS]


def _beside(
    rows: Mapping[Key, Mapping[str, Measured]],
    printed: Mapping[str, Printed],
    score: str,
    noise: str,
) -> str:
    """Return ours in bold, then what others printed."""
    lines = [
        [f"**{name}**", *_line(sets, lambda found: str(found.cell(score)))]
        for name, sets in _ours(rows, noise)
    ]
    for name, row in printed.items():
        if row.noise == noise:
            errors = row.errors or {}
            cells = (Cell(row.means.get(data), errors.get(data)) for data in SETS)
            lines.append([f"{name} ({row.source})", *map(str, cells)])
    return markdown_table(["", *SETS], lines)


def _differences(rows: Mapping[Key, Mapping[str, Measured]], first: str, second: str) -> str:
    """Return log likelihood of one posterior minus that of another, by set."""
    lines = []
    for noise in ("learned", "predicted"):
        one, two = (rows.get((name, noise), {}) for name in (first, second))
        both = [str(one[d].minus(two[d], "log_likelihood")) if d in one and d in two else "–"
                for d in SETS]  # fmt: skip
        if any(cell != "–" for cell in both):
            lines.append([f"{noise} noise", *both])
    return markdown_table(["", *SETS], lines)


def _ranks(rows: Mapping[Key, Mapping[str, Measured]], noise: str) -> str:
    """For each of ours its mean rank against strong MC dropout: 1 where it is ahead, 2 behind."""
    bar = LOG_LIKELIHOOD[DROPOUT].means
    lines = []
    for name, sets in _ours(rows, noise):
        known = [data for data in SETS if data in sets]
        means = {data: sets[data].cell("log_likelihood").ours or 0.0 for data in known}
        ahead = [data for data in known if means[data] > bar[data]]
        mine = fmean(1.0 if data in ahead else 2.0 for data in known)
        lines.append([name, f"{mine:.2f}", f"{3 - mine:.2f}", ", ".join(ahead) or "none"])
    header = ["", "mean rank", f"mean rank of {DROPOUT}", "ahead on"]
    return markdown_table(header, lines)


def _says(rows: Mapping[Key, Mapping[str, Measured]], noise: str) -> str:
    """In sentences: rank, intervals and time of ours, and how the matrix normal compares."""
    lines = [_sentence(name, sets) for name, sets in _ours(rows, noise)]
    matrix = rows.get(("matrix-normal", noise))
    if matrix:
        near = ", ".join(_not_below(matrix, LOG_LIKELIHOOD[KFAC])) or "none"
        lines.append(f"- The matrix normal is within a standard error of {KFAC}, or above: {near}.")
    return "\n".join(lines) if lines else "Not measured yet."


def _sentence(name: str, sets: Mapping[str, Measured]) -> str:
    """Return what one of ours comes to, over the sets that it was fitted to."""
    means = {data: each.cell("log_likelihood").ours or 0.0 for data, each in sets.items()}
    ahead = sum(value > LOG_LIKELIHOOD[DROPOUT].means[data] for data, value in means.items())
    inside, seconds = (
        [each.cell(score).ours or 0.0 for each in sets.values()]
        for score in ("coverage", "duration")
    )
    return (
        f"- **{name}** has a better log likelihood than {DROPOUT} on {ahead} of "
        f"{_counted(len(sets))}; {_behind_hmc(means)}. Its 90% intervals hold "
        f"{100 * min(inside):.0f} to {100 * max(inside):.0f}% of the targets, and a fit takes "
        f"{min(seconds):.0f} to {max(seconds):.0f} seconds of one core."
    )


def _behind_hmc(means: Mapping[str, float]) -> str:
    """By how much the long run of a sampler is ahead, where it is."""
    gaps = {data: LOG_LIKELIHOOD[HMC].means[data] - value for data, value in means.items()}
    behind = [gap for gap in gaps.values() if gap > 0]
    if not behind:
        return f"{HMC} is not ahead anywhere"
    return f"{HMC} is ahead on {len(behind)}, by {min(behind):.2f} to {max(behind):.2f} nats"


def _counted(sets: int) -> str:
    return "one set" if sets == 1 else f"{sets} sets"


def _not_below(sets: Mapping[str, Measured], bar: Printed) -> Iterator[str]:
    """The sets on which ours is not below a printed row by more than both errors together."""
    for data, measured in sets.items():
        cell = measured.cell("log_likelihood")
        error = math.hypot(cell.error or 0.0, (bar.errors or {}).get(data, 0.0))
        if cell.ours is not None and cell.ours > bar.means[data] - error:
            yield data


def trials_table(file: Path) -> str:
    """Log likelihoods of every trial minus those of what it was tried against, split by split."""
    study = read_object(file, {"against", "trials"}, "trials", "restore the file")
    against: Mapping[str, str] = study["against"]
    trials = _by_name(study["trials"])
    tried = [data for data in SETS if any(data in sets for sets in trials.values())]
    lines = [
        [name, against[name], *(_difference(trials, (name, against[name]), d) for d in tried)]
        for name in trials
        if name in against
    ]
    return markdown_table(["", "against", *tried], lines)


def _by_name(trials: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Measured]]:
    splits: dict[str, dict[str, dict[int, Mapping[str, float]]]] = {}
    for trial in trials:
        sets = splits.setdefault(trial["what"], {})
        sets.setdefault(trial["data"], {})[trial["split"]] = trial
    return {
        name: {data: Measured(found) for data, found in sets.items()}
        for name, sets in splits.items()
    }


def _difference(
    trials: Mapping[str, Mapping[str, Measured]], pair: tuple[str, str], data: str
) -> str:
    first, second = (trials[name].get(data) for name in pair)
    if first is None or second is None or not first.splits.keys() & second.splits.keys():
        return "–"
    both = len(first.splits.keys() & second.splits.keys())
    return f"{first.minus(second, 'log_likelihood')} ({both})"
