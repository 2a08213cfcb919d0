"""Keep what a table needs of a run in one small file: its result, its recipe, its curves."""

from collections.abc import Sequence
from pathlib import Path

from leanbayes.lab.files import write_json
from leanbayes.lab.path_names import path_name
from leanbayes.lab.recipe_files import parse_yaml
from leanbayes.lab.runs import Run
from research.publishing.rounding import rounded

_POINTS = 60
_DIGITS = 5


def archive(folder: Path, out: Path, label: str = "") -> Path:
    """Write ``NAME-seedSEED.json`` of a finished run, or ``NAME-LABEL-seedSEED.json``.

    Args:
        folder: of the run.
        out: the folder of such files.
        label: tells runs of one recipe under several budgets apart.

    Curves over epochs are the file's ``history``. What a run records as its history, stops and
    changed settings, are its ``incidents``.
    """
    run = Run(folder)
    recipe = parse_yaml(run.recipe.to_yaml())
    if run.damage:
        raise ValueError(run.damage[0])
    if not run.result:
        raise FileNotFoundError(f"{folder} holds no finished run; train or resume it first")
    kept = thinned(len(next(iter(run.columns.values()), [])), _POINTS)
    curves = {
        name: rounded([values[i] for i in kept], _DIGITS) for name, values in run.columns.items()
    }
    result = {("incidents" if key == "history" else key): run.result[key] for key in run.result}
    name = "-".join(filter(None, (run.recipe.name, label, f"seed{run.recipe.seed}")))
    return write_json(
        out / f"{path_name(name)}.json", {**result, "recipe": recipe, "history": curves}
    )


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
