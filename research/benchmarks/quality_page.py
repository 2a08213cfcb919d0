"""The section of docs/performance.md about seconds to a bound, and its picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from leanbayes.plots import COLORS
from research.benchmarks.pictures import figure_of, png_of
from research.benchmarks.quality import LONG, PEERS, seconds_to
from research.publishing.tables import markdown_table

Result = Mapping[str, Any]
OURS = "k-tied 2"


def _curves(result: Result, name: str) -> list[Mapping[str, list[float]]]:
    return [part["curve"] for part in result["parts"].values() if part["row"] == name]


def _rows(result: Result) -> list[str]:
    """Return the names of what was run, in their order."""
    return list(dict.fromkeys(part["row"] for part in result["parts"].values()))


def _last(result: Result, name: str, *keys: str) -> float:
    """Return the mean over seeds of what a row ends with."""
    return statistics.fmean(sum(c[key][-1] for key in keys) for c in _curves(result, name))


def _peer(result: Result) -> str:
    """Return the peer with the best bound at its end, trained as its documentation has it."""
    here = [name for name in PEERS if _curves(result, name)]
    return min(here, key=lambda name: _last(result, name, "nll", "kl"))


def _reached(result: Result, name: str, bound: float) -> float | None:
    """Return the mean seconds to a bound; ``None`` unless every seed reaches it."""
    found = [seconds_to(curve, bound) for curve in _curves(result, name)]
    known = [seconds for seconds in found if seconds is not None]
    return statistics.fmean(known) if found and len(known) == len(found) else None


def say(found: Mapping[str, Result]) -> list[str]:
    """Return how much sooner ours has the bound that the best peer ends with."""
    result = found["quality"]
    peer = _peer(result)
    bound, needed = _last(result, peer, "nll", "kl"), _last(result, peer, "seconds")
    ours = _reached(result, OURS, bound)
    start = f"After {LONG} epochs on MNIST {peer} has a −ELBO of {bound:.3f}"
    if ours is None:
        return [f"{start}; {OURS} does not reach it in every seed."]
    return [
        f"{start}, in {needed:.0f} s; k-tied 2, from our start and by our schedule, has it after "
        f"**{ours:.1f} s: {needed / ours:.1f} times less**."
    ]


def section(result: Result) -> list[str]:
    """Return a table and a picture."""
    peer = _peer(result)
    bound = _last(result, peer, "nll", "kl")
    rows = []
    schedules = result["settings"]["schedules"]
    for name in _rows(result):
        reached = _reached(result, name, bound)
        sooner = "–" if reached is None else f"{_last(result, peer, 'seconds') / reached:.1f}"
        rows.append(
            (
                name,
                str(schedules[name]["epochs"]),
                str(len(_curves(result, name))),
                f"{_last(result, name, 'nll', 'kl'):.3f}",
                f"{_last(result, name, 'nll'):.3f}",
                f"{_last(result, name, 'seconds'):.1f}",
                "–" if reached is None else f"{reached:.1f}",
                sooner,
            )
        )
    headings = ("row", "epochs", "seeds", "−ELBO", "NLL", "seconds", f"seconds to {bound:.3f}")
    settings = result["settings"]
    schedule = schedules[OURS]
    return [
        "## Seconds to a bound",
        "The network is an MLP 784-400-400-10, trained on 50,000 digits of MNIST and evaluated on "
        f"10,000 others, with a prior of standard deviation {settings['prior']}. The table has the "
        "final −ELBO and NLL per example, and the CPU seconds of training. It also has the seconds "
        "until the final −ELBO of the best peer.",
        markdown_table((*headings, "times sooner"), rows, text=1),
        "![−ELBO over seconds of training.](performance/quality.png)",
        f"Our start: standard deviations of {settings['start']}. Our schedule: Adam at "
        f"{schedule['lr']:g} ({schedule['scales']:g} times that for scales), cosine decay, KL "
        f"warm-up over {100 * schedule['rise']:.0f}% of the steps. Peers run as documented, with "
        "Adam at 1e-3, and again with our start and schedule. bayesian-torch averages its KL over "
        "weights, which is not the ELBO; the sum is used here.",
    ]


def draw(result: Result) -> dict[str, bytes]:
    """Return −ELBO over seconds, a line a row, the first seed."""
    figure = figure_of(8.4, 4.2)
    axes = figure.subplots()
    for number, name in enumerate(_rows(result)):
        curve = _curves(result, name)[0]
        bound = [nll + kl for nll, kl in zip(curve["nll"], curve["kl"], strict=True)]
        style = "-" if name in (OURS, *PEERS) else "--"
        axes.loglog(
            curve["seconds"],
            bound,
            style,
            color=COLORS[number % len(COLORS)],
            label=name,
        )
    axes.set_xlabel("seconds of one processor")
    axes.set_ylabel("−ELBO of a held-out example")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return {"quality": png_of(figure)}
