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
_LARGE = "transformer of 100 million parameters"
GOALS = (
    *_each("one pass", "one_pass", "setups", K_TIED, _ONE_PASS, ", one pass"),
    *_each("20 samples", "networks", "predictions", K_TIED, _SAMPLES),
    *_each("20 samples", "networks", "predictions", MEAN_FIELD, _SAMPLES),
    *_each("20 samples", "networks", "predictions", RANK1, dict.fromkeys(_SAMPLES, 24.0)),
    *_each("step", "networks", "setups", K_TIED, _STEPS),
    *_each("step", "networks", "setups", RANK1, {"lstm": 1.6}),
    *_each("step", "networks", "setups", f"{K_TIED}, learned prior scale", {"readme": 1.25}),
    *_each("step", "networks", "setups", f"{MEAN_FIELD}, learned prior scale", {"readme": 1.6}),
    *_each("step", "networks", "setups", SPLIT, {"mixture": 1.35}),
    *_each("prediction", "networks", "predictions", SPLIT, {"mixture": 4.3}),
    Goal(f"step, {_LARGE}", "networks", ("large", "times", "training step"), 1.3),
    Goal(f"KL, {_LARGE}", "networks", ("large", "times", "KL and its gradient"), 0.1),
    Goal(f"memory of a step, {_LARGE}", "networks", ("large", "memory", "training step"), 1.15),
)


def measured(found: Mapping[str, Result], goal: Goal) -> float | None:
    """Return the median that a goal is about; ``None`` if it was not measured."""
    if goal.file not in found:
        return None
    value: Any = found[goal.file]["branches"]["native"]
    for key in goal.path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value["median"] if isinstance(value, Mapping) else value) if value else None


def section(found: Mapping[str, Result]) -> list[str]:
    """Return a section: every goal, its figure and whether it is reached."""
    figures = {goal: measured(found, goal) for goal in GOALS}
    known = {goal: figure for goal, figure in figures.items() if figure is not None}
    reached = sum(figure <= goal.most for goal, figure in known.items())
    rows = [
        (
            goal.title,
            f"{goal.most:g}",
            "–" if figure is None else f"{figure:.2f}",
            _verdict(goal, figure),
        )
        for goal, figure in figures.items()
    ]
    return [
        "## Goals",
        f"{reached} of {len(known)} measured goals are reached. Costs are in steps or passes of "
        "the plain network.",
        markdown_table(("cost", "at most", "measured", "reached"), rows, text=1),
    ]


def _verdict(goal: Goal, figure: float | None) -> str:
    if figure is None:
        return "not measured"
    return "**yes**" if figure <= goal.most else "no"
