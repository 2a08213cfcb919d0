"""Runs of the study of defaults: their methods, and differences paired by seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

Study = Mapping[str, Any]
Metrics = Mapping[str, float | None]
BySeed = Mapping[int, Metrics]
PLAIN, DROPOUT, RECOMMENDED = "plain", "MC dropout", "found"
METRICS = {"quality": ("accuracy", "rmse"), "nll": ("nll",), "calibration": ("ece", "coverage_gap")}
"""What is compared, and its names for classes and for numbers."""


class Difference(NamedTuple):
    """The mean difference of pairs, its standard error, and their number."""

    mean: float
    error: float | None
    pairs: int

    def __str__(self) -> str:
        places = 4
        if self.error:
            places = min(4, max(1, 1 - math.floor(math.log10(self.error))))
        said = f"{self.mean:+.{places}f}".replace("-", "−")
        if self.error is None:
            return said
        least = 10.0**-places  # an error is never rounded to zero
        error = f"{self.error:.{places}f}" if self.error >= least / 2 else f"<{least:.{places}f}"
        return f"{said} ± {error if self.error else 0}"


def value(metrics: Metrics, what: str) -> float:
    """Return a metric by what is compared, for classes and for numbers."""
    (found,) = (metrics[name] for name in METRICS[what] if name in metrics)
    assert found is not None
    return found


def methods(study: Study, task: str, rows: str) -> dict[str, BySeed]:
    """Metrics on validation or test rows by method and seed; dropout at its most tried rate."""
    found: dict[str, dict[int, Metrics]] = {PLAIN: {}, DROPOUT: {}, RECOMMENDED: {}}
    rate = dropout_rate(study, task)
    for part in study["parts"].values():
        name = _method(study, part, rate)
        if part["task"] == task and rows in part and name in found:
            found[name][part["seed"]] = part[rows]
    return {name: seeds for name, seeds in found.items() if seeds}


def dropout_rate(study: Study, task: str) -> float | None:
    """Return the rate that most runs of a task have."""
    rates = [
        part["settings"]["rate"]
        for part in study["parts"].values()
        if part["task"] == task and part["method"] == DROPOUT
    ]
    return max(rates, key=rates.count) if rates else None


def _method(study: Study, part: Mapping[str, Any], rate: float | None) -> str:
    if part["method"] == DROPOUT:
        return DROPOUT if part["settings"]["rate"] == rate else ""
    if part["settings"] and part["settings"] == study["settings"].get("recommended"):
        return RECOMMENDED
    return str(part["method"])


def gaps(ours: BySeed, other: BySeed, what: str) -> list[float]:
    """Return the differences of the seeds that both have."""
    return [value(ours[s], what) - value(other[s], what) for s in ours if s in other]


def difference(values: Sequence[float]) -> Difference | None:
    """Return their mean; none without pairs."""
    if not values:
        return None
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Difference(fmean(values), error, len(values))


Rule = tuple[tuple[str, Any], ...]


def rules(study: Study) -> dict[Rule, dict[str, BySeed]]:
    """Return validation metrics of every k-tied rule that was tried, by task and seed."""
    found: dict[Rule, dict[str, dict[int, Metrics]]] = {}
    for part in study["parts"].values():
        if part["method"] == "k-tied" and "validation" in part:
            rule = tuple(sorted((study["settings"]["defaults"] | part["settings"]).items()))
            seeds = found.setdefault(rule, {}).setdefault(part["task"], {})
            seeds[part["seed"]] = part["validation"]
    return {rule: {**found[rule]} for rule in sorted(found, key=lambda rule: _order(dict(rule)))}


def _order(rule: Mapping[str, Any]) -> tuple[float, ...]:
    tau = rule.get("tau_by_fan_in", rule["tau"])
    return (rule.get("weights_per_example", 0), -float(tau), rule["c"])


def tested_pairs(study: Study, what: str) -> Iterator[tuple[str, float]]:
    """The task and the difference of every pair of the recommended rule and plain, on test rows."""
    for task in study["settings"]["tasks"]:
        found = methods(study, task, "test")
        if RECOMMENDED in found:
            yield from ((task, gap) for gap in gaps(found[RECOMMENDED], found[PLAIN], what))
