"""Blocks of pages that show Adam against the natural gradient, and the bounds of an entropy."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from leanbayes.errors import choose, require
from research.papers.matrix_normal.entropy_bounds import bounds_table
from research.papers.matrix_normal.natural import NATURAL
from research.publishing.cells import Cell
from research.publishing.paper_blocks import OwnBlocks, Picture
from research.publishing.plots import paths
from research.publishing.study_file import read_study
from research.publishing.tables import markdown_table

Study = Mapping[str, Any]
_AXES = {"steps": "step", "seconds": "seconds of a processor"}


BEST, BEST_NATURAL = "best Adam", "best natural gradient"
"""The names of the best run of either kind in claims."""


def natural_blocks(results: Path) -> OwnBlocks:
    """What makes the blocks ``natural-says``, ``natural``, ``natural-curves``, ``entropy-bounds``.

    A claim names the last −ELBO of an optimizer by ``natural/OPTIMIZER negative_elbo``, and how
    long it takes to the last −ELBO of the best Adam by ``… steps`` or ``… seconds``. ``best Adam``
    and ``best natural gradient`` are optimizers too.
    """

    def study() -> Study:
        return read_study(results / "studies" / "natural.json", "papers natural")

    return OwnBlocks(
        tables={
            "natural": lambda _: optimizers_table(study()),
            "natural-says": lambda adam: comparison(study(), None if adam == "all" else adam),
            "entropy-bounds": lambda _: bounds_table(),
        },
        pictures={
            "natural-curves": lambda axis: [
                Picture(f"natural-{axis}", draw_optimizers(study(), axis))
            ],
        },
        cells={"natural": lambda name, column: _cell(study(), name, column)},
    )


def _curves(study: Study) -> dict[str, dict[str, list[float]]]:
    """Return the curve of every optimizer: means over seeds, point by point."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for part in study["parts"].values():
        found.setdefault(part["optimizer"], []).append(part)
    return {
        name: {
            column: [fmean(at) for at in zip(*(part[column] for part in parts), strict=True)]
            for column in ("steps", "seconds", "negative_elbo")
        }
        for name, parts in found.items()
    }


Curves = Mapping[str, Mapping[str, Sequence[float]]]


def best_adam(curves: Curves) -> str:
    """Return the rate of Adam that ends with the lowest −ELBO."""
    return _best({name: curve for name, curve in curves.items() if not name.startswith(NATURAL)})


def _best_natural(curves: Curves) -> str:
    return _best({name: curve for name, curve in curves.items() if name.startswith(NATURAL)})


def _best(curves: Curves) -> str:
    require(bool(curves), "the study has too few runs; resume python -m research papers natural")
    return min(curves, key=lambda name: curves[name]["negative_elbo"][-1])


def reached(curve: Mapping[str, Sequence[float]], goal: float, axis: str) -> float | None:
    """Where a curve is first at or below a goal; ``None`` if it never is.

    Example:
        >>> curve = {"steps": [0, 10, 20], "negative_elbo": [3.0, 1.0, 0.5]}
        >>> reached(curve, 1.5, "steps"), reached(curve, 0.1, "steps")
        (10, None)
    """
    pairs = zip(curve[axis], curve["negative_elbo"], strict=True)
    return next((at for at, value in pairs if value <= goal), None)


def comparison(study: Study, adam: str | None = None) -> str:
    """In a sentence: what natural gradients need to where Adam ends."""
    curves = _curves(study)
    adam = best_adam(curves) if adam is None else adam
    ending = choose("optimizer", adam, curves)
    goal, steps, seconds = (ending[axis][-1] for axis in ("negative_elbo", *_AXES))
    ends = f"{adam} ends with a −ELBO of {goal:.3f}, after {steps:,.0f} steps and {seconds:.0f} s"
    natural = _first_there(curves, goal)
    last = curves[natural]["negative_elbo"][-1]
    own_steps, own_seconds = (reached(curves[natural], goal, axis) for axis in _AXES)
    if own_steps is None or own_seconds is None:
        return f"{ends}. The {natural} does not get there: it ends with {last:.3f}."
    fewer, longer = steps / own_steps, own_seconds / seconds
    return (
        f"{ends}. The {natural} is there after {own_steps:,.0f} steps ({fewer:.1f} times fewer) "
        f"and {own_seconds:.0f} s ({longer:.1f} times as long), and ends with {last:.3f}."
    )


def _first_there(curves: Curves, goal: float) -> str:
    """Return the natural gradient with the fewest steps to a goal; the best if none comes there."""
    steps = {
        name: reached(curve, goal, "steps")
        for name, curve in curves.items()
        if name.startswith(NATURAL)
    }
    there = {name: at for name, at in steps.items() if at is not None}
    return min(there, key=there.__getitem__) if there else _best_natural(curves)


def optimizers_table(study: Study) -> str:
    """Return the last −ELBO of every optimizer, and how long it took to that of the best Adam."""
    curves = _curves(study)
    best = best_adam(curves)
    goal = curves[best]["negative_elbo"][-1]

    def line(name: str, curve: Mapping[str, Sequence[float]]) -> list[str]:
        steps, seconds = (reached(curve, goal, axis) for axis in _AXES)
        return [
            name,
            f"{curve['negative_elbo'][-1]:.4f}",
            f"{curve['steps'][-1]:,.0f}",
            f"{curve['seconds'][-1]:.0f}",
            "never" if steps is None else f"{steps:,.0f}",
            "never" if seconds is None else f"{seconds:.0f}",
        ]

    goal_of = f"to the end of {best}"
    header = ["optimizer", "last −ELBO", "steps", "seconds", f"steps {goal_of}"]
    return markdown_table([*header, f"seconds {goal_of}"], [line(*item) for item in curves.items()])


def draw_optimizers(study: Study, axis: str) -> bytes:
    """Return −ELBO over steps, or over seconds of training, a line for every optimizer."""
    label = choose("axis", axis, _AXES)
    lines = {name: (curve[axis], curve["negative_elbo"]) for name, curve in _curves(study).items()}
    return paths(lines, label, "−ELBO of training images", log=True)


def _cell(study: Study, name: str, column: str) -> Cell:
    curves = _curves(study)
    best = curves[best_adam(curves)]
    named = {**curves, BEST: best, BEST_NATURAL: curves[_best_natural(curves)]}
    curve = choose("optimizer", name, named)
    goal = best["negative_elbo"][-1]
    steps, seconds = (reached(curve, goal, axis) for axis in _AXES)
    cells = {
        "negative_elbo": Cell(curve["negative_elbo"][-1]),
        "steps": Cell(None if steps is None else round(steps)),
        "seconds": Cell(seconds),
    }
    seeds = len({part["seed"] for part in study["parts"].values()})
    return replace(choose("number", column, cells), seeds=seeds)
