"""docs/lora.md, from the file of the study: conclusions, the table, how it was measured."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from leanbayes.errors import require
from leanbayes.lab.files import read_object, write_text
from research.publishing.cells import count
from research.publishing.pages import page_of
from research.publishing.paper import DOCS, ROOT
from research.publishing.study_file import read_study
from research.publishing.tables import markdown_table
from research.studies.lora.rows import ROWS

RESULTS = ROOT / "results" / "lora" / "minilm.json"
TRIALS = RESULTS.with_name("trials.json")
PAGE = DOCS / "lora.md"

Part = Mapping[str, Any]
_PLAIN, _ENSEMBLE = "LoRA", "ensemble of 3"
_RANDOM = ("last layer", "mean field", "k-tied", "rank-1")
_AUROC = "auroc.docstrings.entropy"
_COLUMNS: Mapping[str, tuple[str, int, float]] = {
    "accuracy": ("accuracy %", 1, 100.0),
    "nll": ("NLL", 3, 1.0),
    "ece": ("ECE %", 1, 100.0),
    _AUROC: ("docstrings: AUROC by entropy", 3, 1.0),
    "auroc.docstrings.mutual_information": ("by disagreement", 3, 1.0),
    "auroc.shuffled.entropy": ("shuffled: AUROC by entropy", 3, 1.0),
    "auroc.shuffled.mutual_information": ("by disagreement", 3, 1.0),
}
"""Title, digits and factor of every metric."""


def write_page(results: Path = RESULTS, page: Path = PAGE) -> Path:
    """Write the page from a file of results."""
    study = read_study(results, "studies lora")
    return write_text(page, page_text(study, read_trials()))


def read_trials(file: Path = TRIALS) -> Sequence[Part]:
    """Return the trials by which the settings of the study were chosen."""
    found: Sequence[Part] = read_object(file, {"trials"}, "trials", "restore the file")["trials"]
    return found


def page_text(study: Mapping[str, Any], trials: Sequence[Part]) -> str:
    """Return the whole page."""
    parts: dict[str, list[Part]] = {name: [] for name in ROWS}
    for part in study["parts"].values():
        parts[part["row"]].append(part)
    require(all(parts.values()), "the study is not finished; resume research studies lora")
    settings, first = study["settings"], parts[_PLAIN]
    counts = Counter(trial["row"] for trial in trials)
    return page_of(
        __file__,
        conclusions="\n".join(_conclusions(parts)),
        table=_table(parts),
        seeds=f"{len(first)} seed{'s' * (len(first) > 1)}",
        error=first[0]["nll"]["error"],
        settings=settings,
        sizes=settings["sizes"],
        python=first[0]["python"],
        versions=", ".join(f"{name} {number}" for name, number in first[0]["versions"].items()),
        tried=", ".join(f"{name} {number}" for name, number in counts.items()),
        trials=_trials(trials),
    )


def _values(parts: Sequence[Part], metric: str) -> list[float]:
    found = [part[metric] for part in parts]
    return [value["value"] if isinstance(value, dict) else value for value in found]


def _mean(parts: Sequence[Part], metric: str) -> float:
    return fmean(_values(parts, metric))


def _cell(parts: Sequence[Part], metric: str) -> str:
    """Return mean over seeds ± its standard error."""
    _, digits, factor = _COLUMNS[metric]
    values = [factor * value for value in _values(parts, metric)]
    if "mutual_information" in metric and not parts[0]["disagrees"]:
        return "–"
    error = f" ± {stdev(values) / len(values) ** 0.5:.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{error}"


def _conclusions(parts: Mapping[str, Sequence[Part]]) -> list[str]:
    """Return what the table says, a sentence each."""
    plain, several = parts[_PLAIN], parts[_ENSEMBLE]

    def best(metric: str, choose: Callable[..., str], among: Sequence[str]) -> str:
        return choose(among, key=lambda name: _mean(parts[name], metric))

    def times(given: Sequence[Part], metric: str) -> str:
        return f"{_mean(given, metric) / _mean(plain, metric):.2f}"

    random, calibrated = best("nll", min, _RANDOM), best("ece", min, list(ROWS))
    finder, ours = best(_AUROC, max, list(ROWS)), parts[random]
    return [
        f"- **Of the posteriors {random} predicts best**: its NLL is {_cell(ours, 'nll')}, where "
        f"plain LoRA has {_cell(plain, 'nll')} and an {_ENSEMBLE} has {_cell(several, 'nll')}. It "
        f"is below plain LoRA with {_wins(ours, plain, 'nll')} of {len(plain)} seeds.",
        f"- It trains {times(ours, 'trained')} times as many numbers as plain LoRA (the ensemble "
        f"{times(several, 'trained')}) and takes {times(ours, 'seconds')} times as long (the "
        f"ensemble {times(several, 'seconds')}).",
        f"- The calibration error is lowest with **{calibrated}**: "
        f"{_cell(parts[calibrated], 'ece')}%, plain LoRA {_cell(plain, 'ece')}%.",
        f"- By entropy **{finder}** tells docstrings of Python's library from reviews best: AUROC "
        f"{_cell(parts[finder], _AUROC)}, plain LoRA {_cell(plain, _AUROC)}.",
        f"- Accuracies lie between {min(_mean(p, 'accuracy') for p in parts.values()):.1%} and "
        f"{max(_mean(p, 'accuracy') for p in parts.values()):.1%}; the standard error of one on "
        f"this test set is {plain[0]['accuracy']['error']:.1%}.",
    ]


def _wins(parts: Sequence[Part], plain: Sequence[Part], metric: str) -> int:
    """With how many seeds a row has less of something than plain LoRA."""
    pairs = zip(_values(parts, metric), _values(plain, metric), strict=True)
    return sum(ours < theirs for ours, theirs in pairs)


def _table(parts: Mapping[str, Sequence[Part]]) -> str:
    titles = [title for title, _, _ in _COLUMNS.values()]
    header = ["", *titles, "trained numbers", "CPU s to train", "CPU s to predict"]
    lines = [
        [
            name,
            *(_cell(given, metric) for metric in _COLUMNS),
            count(round(_mean(given, "trained"))),
            f"{_mean(given, 'seconds'):.0f}",
            f"{_mean(given, 'predict_seconds'):.0f}",
        ]
        for name, given in parts.items()
    ]
    return markdown_table(header, lines)


def _trials(trials: Sequence[Part]) -> str:
    """What was tried, and what came of it."""
    columns = {
        "rate": "rate",
        "kl_weight": "KL weight",
        "prior": "prior scale",
        "first_scale": "first scale",
        "scale_rate": "rate of scales",
        "estimator": "noise",
        "reviews": "reviews",
        "steps": "steps",
    }
    lines = [
        [
            trial["row"],
            *(_written(trial["config"][name]) for name in columns),
            *(f"{trial[name]:.3f}" for name in ("nll", "accuracy", _AUROC)),
        ]
        for trial in trials
    ]
    return markdown_table(["", *columns.values(), "NLL", "accuracy", "AUROC"], lines)


def _written(value: object) -> str:
    return "–" if value is None else f"{value}"
