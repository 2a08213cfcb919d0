"""Writes docs/kl_weight.md and its pictures from the files in results/kl_weight."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from leanbayes import plots as draw
from leanbayes.lab import plots
from leanbayes.saving.files import replace_file
from research.publishing.tables import markdown_table

NAMES = {"concrete": "UCI concrete", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
METRICS = {
    "nll": "negative log likelihood",
    "ece": "calibration error",
    "coverage": "coverage of what should hold 90 %",
    "auroc": "AUROC of foreign data",
}
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
    files = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(results.glob("*.json"))]
    if not files:
        raise FileNotFoundError(f"{results} has no results; run research studies kl-weight first")
    found = cells(files)
    folder = docs / "kl_weight"
    folder.mkdir(parents=True, exist_ok=True)
    for metric, label in METRICS.items():
        replace_file(folder / f"{metric}.png", picture(found, metric, label))
    return replace_file(docs / "kl_weight.md", text(found, files).encode())


def cells(files: Sequence[Mapping[str, Any]]) -> Cells:
    """Means over seeds; data sets in the order of their names on the page."""
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
    """What follows for a choice of the weight."""
    good = {name: as_good_as_best(by_weight) for name, by_weight in found.items()}
    everywhere = set.intersection(*map(set, good.values()))
    if everywhere:
        weight = max(everywhere)
        held = [found[name][weight]["coverage"].mean for name in found]
        return (
            f"**Take a weight of {weight:g}.** It is the largest whose NLL is as good as the best "
            f"on all {len(found)} data sets (within two standard errors), and what should hold "
            f"90 % holds {_percent(min(held))} to {_percent(max(held))}."
        )
    each = "; ".join(f"{NAMES[n]} {_range(weights)}" for n, weights in good.items())
    weight, cost = least_regret(found)
    return (
        "**Choose the weight on validation data, by NLL.** No weight is as good as the best on all "
        f"data sets (within two standard errors): {each}. Without validation data take {weight:g}: "
        f"it costs at most {cost:.2f} nats of NLL on any of them, less than all others."
    )


def least_regret(found: Cells) -> tuple[float, float]:
    """The weight that loses least where it loses most, and how many nats that is."""
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
        told = max(by_weight, key=lambda w: by_weight[w]["auroc"].mean)
        line = f"{NAMES[name]}: NLL is best at a weight of {best:g}, coverage is nearest to 90 % "
        line += f"at {right:g} ({_percent(by_weight[right]['coverage'].mean)}), foreign data are "
        line += f"told best at {told:g}."
        if 1.0 in by_weight and best != 1.0:
            whole, least = by_weight[1.0]["nll"], by_weight[best]["nll"]
            line += f" The ELBO's weight of 1 costs {whole.mean - least.mean:.3f} nats of NLL"
            line += f" and covers {_percent(by_weight[1.0]['coverage'].mean)}."
        yield line


_ADVICE = (
    "These networks have learned prior scales. With `lb.convert(net)` the prior differs, and "
    "`lb.elbo(nll, model, …)` has a weight that follows from the sizes: see "
    "[Train well](train_well.md)."
)


def text(found: Cells, files: Sequence[Mapping[str, Any]]) -> str:
    """The whole page."""
    lines = "\n".join(f"- {line}" for line in (rule(found), *conclusions(found)))
    parts = ["# The weight of the KL", lines, _ADVICE]
    for metric, label in METRICS.items():
        parts.append(f"![{label[0].upper()}{label[1:]} over the weight.](kl_weight/{metric}.png)")
    for name, by_weight in found.items():
        parts += [f"## {NAMES[name]}", _table(by_weight)]
    parts += ["## What was done", _how(files)]
    return "\n\n".join(parts) + "\n"


def _table(by_weight: Mapping[float, Mapping[str, Cell]]) -> str:
    metrics = list(next(iter(by_weight.values())))
    rows = [
        [f"{weight:g}", *(f"{found[m].mean:.3f} ± {found[m].error:.3f}" for m in metrics)]
        for weight, found in by_weight.items()
    ]
    return markdown_table(["weight", *(TITLES.get(metric, metric) for metric in metrics)], rows)


def _how(files: Sequence[Mapping[str, Any]]) -> str:
    sizes = {f["data"]: f["config"] for f in files}
    each = "; ".join(
        f"{NAMES[name]}: {c['examples']} examples, one hidden layer of {c['hidden']}, {c['steps']} "
        f"steps of Adam in batches of {c['batch']} from a rate of {c['lr']:g} that falls to "
        "zero, while the weight of the KL rises over the first "
        f"{100 * c['warmup']:.0f} % of them"
        for name, c in sizes.items()
    )
    seeds = "; ".join(f"{NAMES[name]} {c['seeds']}" for name, c in sizes.items())
    minutes = sum(f["seconds"] for f in files) / 60
    return (
        f"{each}. Posteriors are k-tied of rank 2, priors normal with a learnt scale for every "
        f"layer, and predictions average {files[0]['config']['samples']} samples. Errors are "
        f"standard errors over seeds ({seeds}): standard splits of concrete, other training images "
        "otherwise. Of numbers, the calibration error is the mean gap between nominal and observed "
        "coverage of central intervals, and foreign rows have the columns of test rows, each in an "
        "order of its own, told by the predictive variance. Of classes, coverage is how often the "
        "true one is among the most probable that reach 90 % together, and foreign images are "
        "those of the other data set, told by entropy. `python -m research studies kl-weight` "
        f"measures it again, in {minutes:.0f} minutes of one core here."
    )


def picture(found: Cells, metric: str, label: str) -> bytes:
    """A metric over the weight, a line a data set; NLL is shown above each one's best."""
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
    return f"{100 * share:.0f} %"
