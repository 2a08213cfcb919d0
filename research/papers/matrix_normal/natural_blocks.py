"""Blocks of pages that show Adam against the natural gradient, and the bounds of an entropy."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from leanbayes.errors import choose, require
from research.papers.matrix_normal.entropy_bounds import bounds_table
from research.papers.matrix_normal.natural import NATURAL
from research.publishing.cells import Cell
from research.publishing.paper_blocks import OwnBlocks, Picture
from research.publishing.plots import paths
from research.publishing.study_file import read_study
from research.publishing.tables import markdown_table

Study = Mapping[str, Any]
Curve = Mapping[str, Sequence[float]]
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


class _Curves(NamedTuple):
    """The curve of every optimizer, means over seeds, and the best of both kinds."""

    by_name: Mapping[str, Curve]
    adam: str
    natural: str

    @property
    def goal(self) -> float:
        """The last −ELBO of the best Adam."""
        return self.by_name[self.adam]["negative_elbo"][-1]


def _curves(study: Study) -> _Curves:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for part in study["parts"].values():
        found.setdefault(part["optimizer"], []).append(part)
    curves = {
        name: {
            column: [fmean(at) for at in zip(*(part[column] for part in parts), strict=True)]
            for column in ("steps", "seconds", "negative_elbo")
        }
        for name, parts in found.items()
    }
    kinds = [[n for n in curves if n.startswith(NATURAL) == natural] for natural in (False, True)]
    require(all(kinds), "the study has too few runs; resume python -m research papers natural")
    best = (min(names, key=lambda name: curves[name]["negative_elbo"][-1]) for names in kinds)
    return _Curves(curves, *best)


def reached(curve: Curve, goal: float, axis: str) -> float | None:
    """Where a curve is first at or below a goal; ``None`` if it never is.

    Example:
        >>> curve = {"steps": [0, 10, 20], "negative_elbo": [3.0, 1.0, 0.5]}
        >>> reached(curve, 1.5, "steps"), reached(curve, 0.1, "steps")
        (10, None)
    """
    pairs = zip(curve[axis], curve["negative_elbo"], strict=True)
    return next((at for at, value in pairs if value <= goal), None)


def comparison(study: Study, adam: str | None = None) -> str:
    """In a sentence: what natural gradients need to where Adam, the best or a named one, ends."""
    curves = _curves(study)
    adam = curves.adam if adam is None else adam
    ending = choose("optimizer", adam, curves.by_name)
    goal, steps, seconds = (ending[axis][-1] for axis in ("negative_elbo", *_AXES))
    ends = f"{adam} ends with a −ELBO of {goal:.3f}, after {steps:,.0f} steps and {seconds:.0f} s"
    there = {
        name: at
        for name, curve in curves.by_name.items()
        if name.startswith(NATURAL) and (at := reached(curve, goal, "steps")) is not None
    }
    natural = min(there, key=there.__getitem__) if there else curves.natural
    last = curves.by_name[natural]["negative_elbo"][-1]
    own_seconds = reached(curves.by_name[natural], goal, "seconds")
    if own_seconds is None:
        return f"{ends}. The {natural} does not get there: it ends with {last:.3f}."
    own_steps = there[natural]
    fewer, longer = steps / own_steps, own_seconds / seconds
    return (
        f"{ends}. The {natural} is there after {own_steps:,.0f} steps ({fewer:.1f} times fewer) "
        f"and {own_seconds:.0f} s ({longer:.1f} times as long), and ends with {last:.3f}."
    )


def optimizers_table(study: Study) -> str:
    """Return the last −ELBO of every optimizer, and how long it took to that of the best Adam."""
    curves = _curves(study)

    def line(name: str, curve: Curve) -> list[str]:
        there = (reached(curve, curves.goal, axis) for axis in _AXES)
        steps, seconds = (f"{at:,.0f}" if at is not None else "never" for at in there)
        last = f"{curve['negative_elbo'][-1]:.4f}"
        return [name, last, *(f"{curve[axis][-1]:,.0f}" for axis in _AXES), steps, seconds]

    header = ["optimizer", "last −ELBO", "steps", "seconds"]
    header += [f"{axis} to the end of {curves.adam}" for axis in _AXES]
    return markdown_table(header, [line(*item) for item in curves.by_name.items()])


def draw_optimizers(study: Study, axis: str) -> bytes:
    """Return −ELBO over steps, or over seconds of training, a line for every optimizer."""
    label = choose("axis", axis, _AXES)
    curves = _curves(study).by_name
    lines = {name: (curve[axis], curve["negative_elbo"]) for name, curve in curves.items()}
    return paths(lines, label, "−ELBO of training images", log=True)


def _cell(study: Study, name: str, column: str) -> Cell:
    curves = _curves(study)
    best = {BEST: curves.adam, BEST_NATURAL: curves.natural}
    curve = choose("optimizer", best.get(name, name), curves.by_name)
    steps, seconds = (reached(curve, curves.goal, axis) for axis in _AXES)
    cells = {
        "negative_elbo": Cell(curve["negative_elbo"][-1]),
        "steps": Cell(None if steps is None else round(steps)),
        "seconds": Cell(seconds),
    }
    seeds = len({part["seed"] for part in study["parts"].values()})
    return replace(choose("number", column, cells), seeds=seeds)
