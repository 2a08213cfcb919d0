"""Writes docs/kl_weight.md and its picture from the files in results/kl_weight."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import leanbayes as lb
from leanbayes import plots as draw
from leanbayes.lab import plots
from leanbayes.saving.files import replace_file
from leanbayes.training import recommended_kl_weight
from research.publishing.cells import averaged, with_error
from research.publishing.pages import page_of
from research.publishing.tables import markdown_table
from research.studies.kl_weight.study import network

NAMES = {"concrete": "UCI concrete", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
SHAPES = {"concrete": (8, 1), "mnist": (784, 10), "fashion-mnist": (784, 10)}
"""Numbers of inputs and outputs."""
TITLES = {"nll": "NLL", "rmse": "RMSE", "ece": "calibration error", "auroc": "AUROC"}

Cells = dict[str, dict[float, dict[str, tuple[float, float]]]]
"""Means over seeds and their standard errors, by data set, weight and metric."""


def write(results: Path, docs: Path) -> Path:
    """Write the page and its picture."""
    files = read(results)
    found = cells(files)
    (docs / "kl_weight").mkdir(parents=True, exist_ok=True)
    replace_file(docs / "kl_weight" / "nll.png", picture(found))
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
            own = [f["metrics"] for f in files if f["data"] == name and f["weight"] == weight]
            means = {metric: averaged(each[metric] for each in own) for metric in own[0]}
            found.setdefault(name, {})[weight] = {
                metric: (cell.ours or 0.0, cell.error or 0.0) for metric, cell in means.items()
            }
    return found


def recommended(found: Cells, files: Sequence[Mapping[str, Any]]) -> str:
    """Return what the recommended weight costs, by the nearest weight that was measured."""
    sizes = {file["data"]: file["config"] for file in files}
    nearest, lost = [], []
    for name, by_weight in found.items():
        net = network(*SHAPES[name], hidden=sizes[name]["hidden"])
        advised = recommended_kl_weight(lb.convert(net), data_size=sizes[name]["examples"])
        weight = min(by_weight, key=lambda each: abs(math.log(each / advised)))
        nearest.append(f"{weight:g} on {NAMES[name]}")
        lost.append(by_weight[weight]["nll"][0] - by_weight[_best(by_weight)]["nll"][0])
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


def _best(by_weight: Mapping[float, Mapping[str, tuple[float, float]]]) -> float:
    return min(by_weight, key=lambda weight: by_weight[weight]["nll"])


def conclusions(found: Cells) -> Iterator[str]:
    """One line a data set."""
    for name, by_weight in found.items():
        best = _best(by_weight)
        right = min(by_weight, key=lambda w: abs(by_weight[w]["coverage"][0] - 0.9))
        detects = max(by_weight, key=lambda w: by_weight[w]["auroc"][0])
        line = (
            f"{NAMES[name]}: NLL is best at a weight of {best:g}, coverage is nearest to 90% at "
            f"{right:g} ({by_weight[right]['coverage'][0]:.0%}), AUROC is highest at {detects:g}."
        )
        if 1.0 in by_weight and best != 1.0:
            lost = by_weight[1.0]["nll"][0] - by_weight[best]["nll"][0]
            line += f" The ELBO's weight of 1 costs {lost:.3f} nats of NLL"
            line += f" and covers {by_weight[1.0]['coverage'][0]:.0%}."
        yield line


def text(found: Cells, files: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole page."""
    sizes = {f["data"]: f["config"] for f in files}
    said = (recommended(found, files), *conclusions(found))
    tables = (f"## {NAMES[name]}\n\n{_table(by_weight)}" for name, by_weight in found.items())
    each = (
        f"{NAMES[name]}: {c['examples']:,} examples, one hidden layer of {c['hidden']}; "
        f"{c['steps']:,} steps of Adam in batches of {c['batch']}; learning rate {c['lr']:g} with "
        f"cosine decay; KL warm-up over {100 * c['warmup']:.0f}% of the steps"
        for name, c in sizes.items()
    )
    return page_of(
        __file__,
        conclusions="\n".join(f"- {line}" for line in said),
        tables="\n\n".join(tables),
        sizes=f"{'. '.join(each)}.",
        samples=files[0]["config"]["samples"],
        seeds="; ".join(f"{NAMES[name]} {c['seeds']}" for name, c in sizes.items()),
        minutes=sum(f["seconds"] for f in files) / 60,
    )


def _table(by_weight: Mapping[float, Mapping[str, tuple[float, float]]]) -> str:
    metrics = list(next(iter(by_weight.values())))
    rows = [
        [f"{weight:g}", *(with_error(*found[metric], 3) for metric in metrics)]
        for weight, found in by_weight.items()
    ]
    return markdown_table(["weight", *(TITLES.get(metric, metric) for metric in metrics)], rows)


def picture(found: Cells) -> bytes:
    """Return the NLL over the weight, a line a data set, above the best of each."""

    def curves(axes: Any) -> Any:
        draw.style(axes, "weight of the KL", "negative log likelihood, above the best")
        for index, (name, by_weight) in enumerate(found.items()):
            least = by_weight[_best(by_weight)]["nll"][0]
            means, errors = zip(*(scores["nll"] for scores in by_weight.values()), strict=True)
            line = draw.line_style(index, NAMES[name])
            above = [mean - least for mean in means]
            axes.errorbar(list(by_weight), above, yerr=errors, marker="o", markersize=4, **line)
        axes.set_xscale("log")
        draw.add_legend(axes, len(found))
        return axes

    return plots.png(curves)
