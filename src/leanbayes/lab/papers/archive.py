"""Keep what a table needs of a run in one small file: its result, its recipe, its curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from leanbayes.lab.files import write_json
from leanbayes.lab.recipe_files import parse_yaml
from leanbayes.lab.report.folder import read_run

__all__ = ["archive", "thinned"]

_POINTS = 60
_DIGITS = 5


def archive(run: str | Path, out: str | Path, label: str = "") -> Path:
    """Write ``NAME-seedSEED.json`` of a finished run, or ``NAME-LABEL-seedSEED.json``.

    Args:
        run: the run folder.
        out: the folder of such files, which ``leanbayes table`` reads.
        label: tells runs of one recipe under several budgets apart.
    """
    found = read_run(run)
    if not found.result:
        raise FileNotFoundError(f"{run} holds no finished run; train or resume it first")
    kept = thinned(len(next(iter(found.columns.values()), [])), _POINTS)
    history = {
        name: [_rounded(values[index]) for index in kept] for name, values in found.columns.items()
    }
    parts = [found.recipe.name, label, f"seed{found.recipe.seed}"]
    name = "-".join(part for part in parts if part)
    recipe = parse_yaml(found.recipe.to_yaml())
    return write_json(
        Path(out) / f"{name}.json", {**found.result, "recipe": recipe, "history": history}
    )


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def thinned(count: int, points: int) -> Sequence[int]:
    """At most so many indices out of ``count``, evenly, with the first and the last.

    Example:
        >>> thinned(10, 4)
        [0, 3, 6, 9]
        >>> thinned(3, 4)
        [0, 1, 2]
    """
    if count <= points:
        return list(range(count))
    return [round(i * (count - 1) / (points - 1)) for i in range(points)]
