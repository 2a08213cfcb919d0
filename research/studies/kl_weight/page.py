"""Writes docs/kl_weight.md and its pictures from the files in results/kl_weight."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import leanbayes as lb
from leanbayes import plots as draw
from leanbayes.lab import plots
from leanbayes.saving.files import replace_file
from leanbayes.training import recommended_kl_weight
from research.publishing.cells import with_error
from research.publishing.tables import markdown_table
from research.studies.kl_weight.study import network

NAMES = {"concrete": "UCI concrete", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
METRICS = {
    "nll": "negative log likelihood",
    "ece": "calibration error",
    "coverage": "coverage of what should hold 90%",
    "auroc": "AUROC of OOD data",
}
SHAPES = {"concrete": (8, 1), "mnist": (784, 10), "fashion-mnist": (784, 10)}
"""Numbers of inputs and outputs."""
TITLES = {"nll": "NLL", "rmse": "RMSE", "ece": "calibration error", "auroc": "AUROC"}
PROMISED = 0.9


class Cell(NamedTuple):
    """A metric at one weight: its mean over seeds, its standard error, and its value by seed."""

    mean: float
    error: float
    by_seed: dict[int, float]


Cells = dict[str, dict[float, dict[str, Cell]]]
"""By data set, weight and metric."""


def write(results: Path, docs: Path) -> Path:
    """Write the page and its pictures."""
    files = read(results)
    found = cells(files)
    folder = docs / "kl_weight"
    folder.mkdir(parents=True, exist_ok=True)
    for metric, label in METRICS.items():
        replace_file(folder / f"{metric}.png", picture(found, metric, label))
    return replace_file(docs / "kl_weight.md", text(found, files).encode())


def read(results: Path) -> list[dict[str, Any]]:
    """Return the files of the study."""
    files = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(results.glob("*.json"))]
    if not files:
        raise FileNotFoundError(f"{results} has no results; run research studies kl-weight first")
    return files


def cells(files: Sequence[Mapping[str, Any]]) -> Cells:
    """Return means over seeds; data sets in the order of their names on the page."""
    found: Cells = {}
    for name in NAMES:
        for weight in sorted({f["weight"] for f in files if f["data"] == name}):
            own = [f for f in files if f["data"] == name and f["weight"] == weight]
            found.setdefault(name, {})[weight] = {
                metric: _cell({f["seed"]: f["metrics"][metric] for f in own})
                for metric in own[0]["metrics"]
            }
    return found


def _cell(by_seed: dict[int, float]) -> Cell:
    values = list(by_seed.values())
    mean = sum(values) / len(values)
    spread = sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1)
    return Cell(mean, math.sqrt(spread / len(values)), by_seed)


def as_good_as_best(by_weight: Mapping[float, Mapping[str, Cell]]) -> list[float]:
    """The weights whose NLL is within two standard errors of the best one's, seed by seed."""
    best = min(by_weight.values(), key=lambda found: found["nll"].mean)["nll"].by_seed
    kept = []
    for weight, found in by_weight.items():
        own = found["nll"].by_seed
        gap = _cell({seed: own[seed] - best[seed] for seed in best.keys() & own.keys()})
        if gap.mean <= 2 * gap.error:
            kept.append(weight)
    return kept


def rule(found: Cells) -> str:
    """Return what follows for a choice of the weight."""
    good = {name: as_good_as_best(by_weight) for name, by_weight in found.items()}
    everywhere = set.intersection(*map(set, good.values()))
    if everywhere:
        weight = max(everywhere)
        held = [found[name][weight]["coverage"].mean for name in found]
        return (
            f"**A weight of {weight:g} is the largest whose NLL is as good as the best on all "
            f"{len(found)} data sets** (within two standard errors). What should hold 90% holds "
            f"{_percent(min(held))} to {_percent(max(held))}."
        )
    each = "; ".join(f"{NAMES[n]} {_range(weights)}" for n, weights in good.items())
    weight, cost = least_regret(found)
    return (
        "**No single weight is as good as the best on all data sets** (within two standard "
        f"errors): {each}. The one that loses least, {weight:g}, costs up to {cost:.2f} nats of "
        "NLL."
    )


def recommended(found: Cells, files: Sequence[Mapping[str, Any]]) -> str:
    """Return what the recommended weight costs, by the nearest weight that was measured."""
    sizes = {file["data"]: file["config"] for file in files}
    nearest, lost = [], []
    for name, by_weight in found.items():
        net = network(*SHAPES[name], hidden=sizes[name]["hidden"])
        advised = recommended_kl_weight(lb.convert(net), data_size=sizes[name]["examples"])
        weight = min(by_weight, key=lambda each: abs(math.log(each / advised)))
        nearest.append(f"{weight:g} on {NAMES[name]}")
        best = min(cells["nll"].mean for cells in by_weight.values())
        lost.append(by_weight[weight]["nll"].mean - best)
    return (
        f"The weights nearest to the recommended ones are {', '.join(nearest)}. They cost at most "
        f"{max(lost):.3f} nats of NLL beside the best of each data set."
    )


def summary(found: Cells, files: Sequence[Mapping[str, Any]]) -> str:
    """Return what a user needs of the study, for the page with the recommendation."""
    weights = sorted({weight for by_weight in found.values() for weight in by_weight})
    return (
        f"[{len(weights)} weights from {weights[0]:g} to {weights[-1]:g}](kl_weight.md) were "
        f"compared on {len(found)} small data sets, with learned prior scales instead. "
        f"{recommended(found, files)}"
    )


def least_regret(found: Cells) -> tuple[float, float]:
    """Return the weight that loses least where it loses most, and how many nats that is."""
    best = {name: min(c["nll"].mean for c in by.values()) for name, by in found.items()}
    common = set.intersection(*(set(by) for by in found.values()))
    lost = {
        weight: max(by[weight]["nll"].mean - best[name] for name, by in found.items())
        for weight in common
    }
    weight = min(lost, key=lambda each: lost[each])
    return weight, lost[weight]


def _range(weights: Sequence[float]) -> str:
    return f"{weights[0]:g}" if len(weights) == 1 else f"{weights[0]:g} to {weights[-1]:g}"


def conclusions(found: Cells) -> Iterator[str]:
    """One line a data set."""
    for name, by_weight in found.items():
        best = min(by_weight, key=lambda w: by_weight[w]["nll"].mean)
        right = min(by_weight, key=lambda w: abs(by_weight[w]["coverage"].mean - PROMISED))
        detects = max(by_weight, key=lambda w: by_weight[w]["auroc"].mean)
        line = f"{NAMES[name]}: NLL is best at a weight of {best:g}, coverage is nearest to 90% "
        line += f"at {right:g} ({_percent(by_weight[right]['coverage'].mean)}), AUROC is "
        line += f"highest at {detects:g}."
        if 1.0 in by_weight and best != 1.0:
            whole, least = by_weight[1.0]["nll"], by_weight[best]["nll"]
            line += f" The ELBO's weight of 1 costs {whole.mean - least.mean:.3f} nats of NLL"
            line += f" and covers {_percent(by_weight[1.0]['coverage'].mean)}."
        yield line


_PURPOSE = (
    "[Train well](train_well.md) has the recommended KL weight; this page has measurements of "
    "fixed weights, with learned prior scales instead of the prior of `lb.convert(net)`."
)


def _findings(found: Cells, files: Sequence[Mapping[str, Any]]) -> list[str]:
    return [rule(found), recommended(found, files), *conclusions(found)]


def text(found: Cells, files: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole page."""
    lines = "\n".join(f"- {line}" for line in _findings(found, files))
    parts = ["# The weight of the KL", _PURPOSE, lines]
    for metric, label in METRICS.items():
        parts.append(f"![{label[0].upper()}{label[1:]} over the weight.](kl_weight/{metric}.png)")
    for name, by_weight in found.items():
        parts += [f"## {NAMES[name]}", _table(by_weight)]
    parts += ["## Setup", _how(files)]
    return "\n\n".join(parts) + "\n"


def _table(by_weight: Mapping[float, Mapping[str, Cell]]) -> str:
    metrics = list(next(iter(by_weight.values())))
    rows = [
        [f"{weight:g}", *(with_error(found[m].mean, found[m].error, 3) for m in metrics)]
        for weight, found in by_weight.items()
    ]
    return markdown_table(["weight", *(TITLES.get(metric, metric) for metric in metrics)], rows)


def _how(files: Sequence[Mapping[str, Any]]) -> str:
    sizes = {f["data"]: f["config"] for f in files}
    each = ". ".join(
        f"{NAMES[name]}: {c['examples']:,} examples, one hidden layer of {c['hidden']}; "
        f"{c['steps']:,} steps of Adam in batches of {c['batch']}; learning rate {c['lr']:g} with "
        f"cosine decay; KL warm-up over {100 * c['warmup']:.0f}% of the steps"
        for name, c in sizes.items()
    )
    seeds = "; ".join(f"{NAMES[name]} {c['seeds']}" for name, c in sizes.items())
    minutes = sum(f["seconds"] for f in files) / 60
    return (
        f"{each}.\n\nPosteriors are k-tied of rank 2, priors are normal with a learned scale per "
        f"layer, and predictions average {files[0]['config']['samples']} samples. Errors are "
        f"standard errors over seeds ({seeds}). Seeds change the split of concrete and the "
        "training images.\n\n"
        "- **Regression.** The calibration error is the mean gap between nominal and observed "
        "coverage of central intervals. OOD rows are test rows with permuted columns, detected by "
        "predictive variance.\n"
        "- **Classes.** Coverage is the share of examples whose class is among the most probable "
        "classes that together reach 90%. OOD images are those of the other data set, detected by "
        "entropy.\n\n"
        "`python -m research studies kl-weight` measures it again, in "
        f"{minutes:.0f} minutes of one core."
    )


def picture(found: Cells, metric: str, label: str) -> bytes:
    """Return a metric over the weight, a line a data set; NLL is shown above each one's best."""
    above = metric == "nll"

    def curves(axes: Any) -> Any:
        draw.style(axes, "weight of the KL", f"{label}, above the best" if above else label)
        for index, (name, by_weight) in enumerate(found.items()):
            means = [by_weight[w][metric].mean for w in by_weight]
            errors = [by_weight[w][metric].error for w in by_weight]
            shift = min(means) if above else 0.0
            line = draw.line_style(index, NAMES[name])
            values = [m - shift for m in means]
            axes.errorbar(list(by_weight), values, yerr=errors, marker="o", markersize=4, **line)
        if metric == "coverage":
            axes.axhline(PROMISED, **draw.DASHED)
        axes.set_xscale("log")
        draw.add_legend(axes, len(found))
        return axes

    return plots.png(curves)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
