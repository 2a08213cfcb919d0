"""What was tried before the defaults were chosen, on rows held out of training rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leanbayes.lab.files import read_object
from research.publishing.tables import markdown_table
from research.studies.uci.published import SETS
from research.studies.uci.scores import Measured


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
