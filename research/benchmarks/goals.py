"""Goals of costs on networks that people have, and whether the figures reach them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from research.publishing.tables import markdown_table

Result = Mapping[str, Any]
TITLES = {
    "mlp": "MLP",
    "cnn": "CNN",
    "resnet": "ResNet-20",
    "transformer": "transformer",
    "lstm": "LSTM",
    "readme": "MLP, batch 128",
    "mixture": "MLP, batch 1,024",
}
K_TIED, MEAN_FIELD, RANK1 = "k-tied 2", "mean field", "rank-1, 1 member"
MATRIX = "matrix normal, low rank"
SPLIT = "rank-1, 4 members, batch split"


class Goal(NamedTuple):
    """A largest cost: where its figure is, and what it may be."""

    title: str
    file: str
    path: tuple[str, ...]
    most: float


def _each(
    what: str, file: str, of: str, method: str, limits: Mapping[str, float], suffix: str = ""
) -> Iterator[Goal]:
    for name, most in limits.items():
        yield Goal(f"{what}, {TITLES[name]}: {method}", file, (of, name, method + suffix), most)


_ONE_PASS = {"mlp": 2.3, "cnn": 3.0, "resnet": 3.2, "transformer": 4.0}
_SAMPLES = dict.fromkeys(("resnet", "transformer", "lstm"), 21.0)
_STEPS = {"resnet": 1.04, "transformer": 1.10, "lstm": 1.15}
_NEAR_MEAN_FIELD = {"resnet": 1.11, "transformer": 1.19, "lstm": 1.19}
_NEAR_MATRIX = {"resnet": 1.18, "transformer": 1.34, "lstm": 1.29}
_LARGE = "transformer of 100 million parameters"
GOALS = (
    *_each("one pass", "one_pass", "setups", K_TIED, _ONE_PASS, ", one pass"),
    *_each("20 samples", "networks", "predictions", K_TIED, _SAMPLES),
    *_each("20 samples", "networks", "predictions", MEAN_FIELD, _SAMPLES),
    *_each("20 samples", "networks", "predictions", RANK1, dict.fromkeys(_SAMPLES, 24.0)),
    *_each("step", "networks", "setups", K_TIED, _STEPS),
    *_each("step", "networks", "setups", MEAN_FIELD, _NEAR_MEAN_FIELD),
    *_each("step", "networks", "setups", MATRIX, _NEAR_MATRIX),
    *_each("step", "networks", "setups", RANK1, {"lstm": 1.6}),
    *_each("step", "networks", "setups", f"{K_TIED}, learned prior scale", {"readme": 1.25}),
    *_each("step", "networks", "setups", f"{MEAN_FIELD}, learned prior scale", {"readme": 1.6}),
    *_each("step", "networks", "setups", SPLIT, {"mixture": 1.35}),
    *_each("prediction", "networks", "predictions", SPLIT, {"mixture": 4.3}),
    Goal(f"step, {_LARGE}", "networks", ("large", "times", "training step"), 1.3),
    Goal(f"KL, {_LARGE}", "networks", ("large", "times", "KL and its gradient"), 0.1),
    Goal(f"memory of a step, {_LARGE}", "networks", ("large", "memory", "training step"), 1.15),
)


WHY = {
    f"step, ResNet-20: {K_TIED}": "draws of kernels take a hundredth of a pass",
    f"20 samples, ResNet-20: {RANK1}": "factors of every example scale the channels of inputs and "
    "outputs of every convolution",
    f"20 samples, LSTM: {RANK1}": "the plain LSTM is one call of oneDNN; factors of every example "
    "need a product and a kernel for each of 100 steps",
    f"step, {TITLES['readme']}: {MEAN_FIELD}, learned prior scale": "outputs have a product of "
    "means and one of variances, and Adam has twice the parameters",
    f"step, {_LARGE}": "64 tokens are less work than passes over all parameters, which draws, the "
    "KL and its gradient add",
    f"KL, {_LARGE}": "means are read for the value and for the gradient, which is written and "
    "added to the one that is there",
}
"""What costs more than its goal allows, by the title of the goal."""


def figure_of(found: Mapping[str, Result], goal: Goal) -> tuple[float, float] | None:
    """Return the median and first quartile that a goal is about; ``None`` if not measured."""
    if goal.file not in found:
        return None
    value: Any = found[goal.file]["branches"]["native"]
    for key in goal.path:
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        return float(value["median"]), float(value.get("low", value["median"]))
    return (float(value), float(value)) if value else None


def section(found: Mapping[str, Result]) -> list[str]:
    """Return a section: every goal, its figure, whether it is reached, and if not, why."""
    figures = {goal: figure_of(found, goal) for goal in GOALS}
    known = {goal: figure for goal, figure in figures.items() if figure is not None}
    reached = sum(median <= goal.most for goal, (median, _) in known.items())
    near = sum(low <= goal.most < median for goal, (median, low) in known.items())
    rows = [
        (
            goal.title,
            f"{goal.most:g}",
            "–" if figure is None else f"{figure[0]:.{_digits(goal, figure[0])}f}",
            _verdict(goal, figure),
        )
        for goal, figure in figures.items()
    ]
    missed = [goal.title for goal, (_, low) in known.items() if low > goal.most]
    reasons = [f"- {title}: {WHY[title]}." for title in missed if title in WHY]
    return [
        "## Goals",
        f"{reached} of {len(known)} measured goals are reached, and {near} more within the spread "
        "of turns. Costs are in steps or passes of the plain network.",
        markdown_table(("cost", "at most", "measured", "reached"), rows, text=1),
        *(["Where costs are beyond their goals:", "\n".join(reasons)] if reasons else []),
    ]


def _digits(goal: Goal, median: float) -> int:
    """Return as many digits as tell a figure from its goal, two to four."""
    return next((d for d in (2, 3) if round(median, d) != goal.most), 4)


def _verdict(goal: Goal, figure: tuple[float, float] | None) -> str:
    if figure is None:
        return "not measured"
    median, low = figure
    if median <= goal.most:
        return "**yes**"
    return "within the spread" if low <= goal.most else f"no, {median / goal.most - 1:.1%} more"
