"""Writes docs/performance.md and its pictures from the files in results/bench."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from leanbayes.saving.files import replace_file
from research.benchmarks import generator, goals, networks_page, pictures, quality_page
from research.benchmarks.conditions import BUSY, how
from research.benchmarks.networks import network_title, whole_title
from research.benchmarks.peers import PACKAGES
from research.publishing.tables import markdown_table

Result = Mapping[str, Any]
OURS = "k-tied 2, auto"
"""The method that conclusions are about: the default."""


def write(results: Path, docs: Path) -> Path:
    """Write the page and its pictures; a benchmark that was not run has no section."""
    found = read(results)
    folder = docs / "performance"
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in {**pictures.PICTURES, "quality": quality_page.draw}.items():
        if name in found:
            for picture, content in draw(found[name]).items():
                replace_file(folder / f"{picture}.png", content)
    return replace_file(docs / "performance.md", text(found).encode())


def read(results: Path) -> dict[str, Result]:
    """Return the files of a folder, by the benchmark that wrote them."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in results.glob("*.json")}


def text(found: Mapping[str, Result]) -> str:
    """Return the whole page."""
    said = [line for name, tell in CONCLUSIONS.items() if name in found for line in tell(found)]
    parts = ["# Performance", _trial(found), "\n".join(f"- {line}" for line in said)]
    for name, section in SECTIONS.items():
        if name in found:
            parts += section(found[name])
    if "networks" in found:
        parts += goals.section(found)
    parts += ["## Setup", how(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def cell(cost: Mapping[str, Any] | None) -> str:
    """Return a median with its quartiles.

    Example:
        >>> cell({"median": 1.254, "low": 1.2, "high": 1.31, "calm": True})
        '**1.25** (1.20–1.31)'
    """
    if cost is None:
        return "–"
    digits = 2 if cost["median"] < 10 else 1
    mark = "" if cost["calm"] else BUSY
    numbers = (f"{cost[key]:.{digits}f}" for key in ("median", "low", "high"))
    median, low, high = numbers
    return f"**{median}**{mark} ({low}–{high})"


def costs(result: Result, branch: str, setup: str) -> dict[str, Mapping[str, Any]]:
    """Return costs by method; empty where a branch was not run."""
    return dict(result["branches"].get(branch, {}).get("setups", {}).get(setup, {}))


def peers(result: Result, setup: str) -> dict[str, Mapping[str, Any]]:
    """Return the costs of other libraries alone."""
    return {name: c for name, c in costs(result, "peers", setup).items() if name in PACKAGES}


def _by_method(result: Result, title: Callable[[str], str]) -> str:
    setups = list(result["branches"]["native"]["setups"])
    pure = "python" in result["branches"] and result["branches"]["native"]["native"]
    headings = ["method"]
    for setup in setups:
        headings += [title(setup)] + ["pure Python"] * pure
    ours = list(costs(result, "native", setups[0]))
    rows = []
    for name in ours:
        row = [name]
        for setup in setups:
            row.append(cell(costs(result, "native", setup).get(name)))
            row += [cell(costs(result, "python", setup).get(name))] * pure
        rows.append(row)
    for name in dict.fromkeys(n for setup in setups for n in peers(result, setup)):
        row = [f"{name} (peer)"]
        for setup in setups:
            row += [cell(peers(result, setup).get(name))] + ["–"] * pure
        rows.append(row)
    return markdown_table(headings, rows, text=1)


def _kernels(result: Result) -> str:
    if result["branches"]["native"]["native"]:
        return "Columns *pure Python* are with `LEANBAYES_NATIVE=0`."
    return "There were no native kernels: all methods are pure Python."


def _missing(result: Result) -> str:
    if "peers" not in result["branches"]:
        return "Peers were not measured."
    versions = result["branches"]["peers"]["versions"]
    absent = [name for name, package in PACKAGES.items() if versions.get(package) is None]
    here = [f"{name} {versions[p]}" for name, p in PACKAGES.items() if versions.get(p)]
    told = f"Peers: {', '.join(here) or 'none'}."
    return f"{told} Not installable here: {', '.join(absent)}." if absent else told


def _head_to_head(result: Result, title: Callable[[str], str]) -> str:
    pairs = [
        f"{cell(costs(result, 'peers', setup).get(OURS))} ({title(setup)})"
        for setup in costs_setups(result, "peers")
    ]
    if not pairs:
        return ""
    return f"In the process of the peers, the cost of {OURS} was: {'; '.join(pairs)}."


def costs_setups(result: Result, branch: str) -> list[str]:
    """Return the networks that a branch was measured on."""
    return list(result["branches"].get(branch, {}).get("setups", {}))


def step(result: Result) -> list[str]:
    """Return a section: a table, a picture, and who the peers are."""
    return [
        "## A training step",
        "Forward pass, KL, backward pass and update, relative to the same step of the plain torch "
        "network: medians, with quartiles in brackets.",
        _by_method(result, whole_title),
        "![Cost of a training step by method.](performance/step.png)",
        " ".join((_kernels(result), _missing(result), _head_to_head(result, whole_title))).strip(),
    ]


def prediction(result: Result) -> list[str]:
    """Return a section: a table and a picture."""
    run = result["branches"]["native"]
    examples = " and ".join(f"{n:,} ({network_title(s)})" for s, n in run["examples"].items())
    return [
        "## A prediction",
        f"Class probabilities averaged over {run['samples']} samples for examples in one batch, "
        f"{examples}, in forward passes of the plain network.",
        _by_method(result, network_title),
        "![Cost of a prediction by method.](performance/prediction.png)",
        _head_to_head(result, network_title),
    ]


def startup(result: Result) -> list[str]:
    """Return a section: seconds, and ratios to importing torch."""
    run = result["branches"]["native"]
    rows = [
        (f"`{name}`", f"{seconds:.2f}", cell(run["ratios"].get(name)))
        for name, seconds in run["seconds"].items()
    ]
    headings = ("start", "seconds, first quartile", "relative to importing torch")
    return ["## Starting", markdown_table(headings, rows, text=1)]


def scale(result: Result) -> list[str]:
    """Return a section: exponents, and pictures of cost and memory."""
    axes = result["branches"]["native"]["axes"]
    rows = []
    for name, axis in axes.items():
        for method, exponent in axis["exponents"].items():
            ends = [
                f"{p['ratios'][method]['median']:.2f}" if method != "plain" else "1"
                for p in (axis["points"][0], axis["points"][-1])
            ]
            memory = axis["points"][-1]["megabytes"]
            reach = f"{axis['sizes'][0]} … {axis['sizes'][-1]}"
            more = f"{memory[method] / memory['plain']:.2f}"
            rows.append((name, reach, method, f"{exponent:.2f}", *ends, more))
    headings = ("what grows", "sizes", "method", "exponent", "cost of the first size")
    return [
        "## Growth of cost",
        "The exponent is the slope of cost against size, both as logarithms, over the three "
        "largest sizes: 1 is proportional, 2 quadratic. Costs and memory are relative to the plain "
        "network of the same size. Memory is that of parameters, gradients, Adam's moments and the "
        "most that a step or a prediction holds beside them.",
        markdown_table((*headings, "of the last", "memory of the last"), rows, text=3),
        "![Cost against size.](performance/scale.png)",
        "![Peak memory against size.](performance/memory.png)",
    ]


def distributed(result: Result) -> list[str]:
    """Return a section: weak and strong scaling."""
    run = result["branches"]["native"]
    rows = [
        (name, cell(found["weak"]), cell(found["strong"]))
        for name, found in run["posteriors"].items()
    ]
    return [
        "## Two processes",
        f"DDP over gloo, one thread each, batches of {run['batch']:,}, against one process with "
        "one thread, by the clock on the wall. *Weak*: every process has the whole batch; 1 is "
        "perfect. *Strong*: they share it; 2 is perfect. What the plain network reaches is the "
        "limit of the machine.",
        markdown_table(("network", "weak: efficiency", "strong: speed-up"), rows, text=1),
    ]


def laboratory(result: Result) -> list[str]:
    """Return a section: what ``leanbayes train`` adds."""
    return [
        "## The laboratory",
        "An epoch of `leanbayes train` includes Lightning, checkpoints and metrics. It takes "
        f"{cell({**result['ratio'], 'calm': True})} times that of a bare torch loop over the same "
        f"model and {result['examples']:,} images (`python -m research bench laboratory`).",
    ]


def say_step(found: Mapping[str, Result]) -> list[str]:
    """Return how dear the default is, and whether a peer is ahead."""
    sentence = (
        "A training step of k-tied 2 with the default estimator costs **{}** plain steps ({})"
    )
    return _say(found["step"], sentence, whole_title)


def say_prediction(found: Mapping[str, Result]) -> list[str]:
    """Return the same of predictions."""
    sentence = "A prediction of 20 samples costs **{}** plain passes ({})"
    return _say(found["prediction"], sentence, network_title)


def _say(result: Result, sentence: str, title: Callable[[str], str]) -> list[str]:
    """Peers are compared with what our default takes in their own process."""
    lines = []
    for setup in costs_setups(result, "native"):
        line = sentence.format(number(costs(result, "native", setup)[OURS]), title(setup))
        others = peers(result, setup)
        if others:
            best = min(others, key=lambda name: others[name]["median"])
            same = costs(result, "peers", setup)[OURS]
            line += f"; {_compared(best, others[best], same)} in one process"
        lines.append(f"{line}.")
    return lines


def _compared(name: str, peer: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return the fastest peer and us; between overlapping quartiles there is no first place."""
    pair = f"{number(peer)} against {number(ours)}"
    if peer["median"] >= ours["median"]:
        return f"the fastest peer, {name}, takes {pair}"
    if peer["high"] >= ours["low"]:
        return f"{name} takes {pair}, within the spread of both,"
    return f"{name} is ahead with {pair}"


def number(cost: Mapping[str, Any]) -> str:
    """Return a median with as many digits as it deserves."""
    return f"{cost['median']:.{2 if cost['median'] < 10 else 1}f}"


def say_startup(found: Mapping[str, Result]) -> list[str]:
    """Return seconds of help, and of the package over torch."""
    seconds = found["startup"]["branches"]["native"]["seconds"]
    more = seconds["import torch, leanbayes"] - seconds["import torch"]
    return [
        f"`leanbayes --help` answers after **{seconds['leanbayes --help']:.2f} s**; "
        f"`import leanbayes` takes **{more:.2f} s** over `import torch`."
    ]


def say_scale(found: Mapping[str, Result]) -> list[str]:
    """Return how the default grows with the width."""
    axes = found["scale"]["branches"]["native"]["axes"]
    exponents = axes["width"]["exponents"]
    last = axes["width"]["points"][-1]["ratios"]["k-tied 2"]["median"]
    size = axes["width"]["sizes"][-1]
    return [
        f"Cost grows with the width to the power {exponents['k-tied 2']:.2f} (plain network: "
        f"{exponents['plain']:.2f}); with {size:,} units a k-tied step costs {last:.2f} times the "
        "plain one."
    ]


def _trial(found: Mapping[str, Result]) -> str:
    trials = [name for name, result in found.items() if result.get("config", {}).get("quick")]
    if not trials:
        return ""
    return (
        f"**A trial (`--quick`: {', '.join(sorted(trials))}): few turns, the smallest sizes, and "
        "batches of at most 32 whatever a heading says. Do not cite it.**"
    )


def networks(result: Result) -> list[str]:
    """A section: networks that people have."""
    return networks_page.section(result, cell)


CONCLUSIONS: dict[str, Callable[[Mapping[str, Result]], list[str]]] = {
    "step": say_step,
    "prediction": say_prediction,
    "networks": lambda found: networks_page.say(found["networks"]),
    "quality": quality_page.say,
    "startup": say_startup,
    "scale": say_scale,
}
SECTIONS: dict[str, Callable[[Result], list[str]]] = {
    "step": step,
    "prediction": prediction,
    "networks": networks,
    "quality": quality_page.section,
    "startup": startup,
    "scale": scale,
    "distributed": distributed,
    "laboratory": laboratory,
    "generator": generator.section,
}
