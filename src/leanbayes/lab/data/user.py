"""Your own data: a CSV table, or arrays in an NPZ file."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leanbayes.errors import choose, require, unknown
from leanbayes.lab.data.columns import InputColumn, encode_columns, has_gaps, place_columns
from leanbayes.lab.data.dataset import Dataset, Examples, random_split, scaled_dataset
from leanbayes.lab.data.images import read_arrays
from leanbayes.lab.data.labels import fits, read_targets
from leanbayes.lab.tables import Table, read_table

Array = npt.NDArray[Any]


def load_csv(
    path: Path,
    *,
    target: str | int = -1,
    task: str | None = None,
    test: float = 0.1,
    validation: float = 0.1,
    seed: int = 0,
    scaling: str = "standard",
    target_scaling: str = "standard",
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
    missing: Literal["refuse", "mean"] = "refuse",
) -> Dataset:
    """Return a table with one example per row; the first line may hold the names of the columns.

    Args:
        path: the file.
        target: name or number of the column to predict; the last one if not said.
        task: ``"classification"`` or ``"regression"``. If not said, text, and whole numbers of at
            most 20 different values, are classes; see :mod:`leanbayes.lab.data.labels`.
        test: the share of rows for test.
        validation: the share of rows for validation.
        seed: seed of the random split.
        scaling: ``"standard"`` or ``"raw"`` inputs.
        target_scaling: the same for real targets.
        categories: columns whose values are names, each of which becomes an input 0 or 1.
        ignore: columns that are not inputs.
        missing: ``"refuse"`` empty cells among numbers, or let the ``"mean"`` of the training rows
            stand for them, with an input 1 beside it.
    """
    options = (categories, ignore, missing)
    examples, columns, classes, name = _columns(path, target, task, *options)
    parts, note = _split([examples], test, validation, seed)
    parts, columns = _filled(parts, columns, path)
    dataset = scaled_dataset(
        *parts,
        scaling=scaling,
        target_scaling=target_scaling,
        preprocessing=[f"target {name!r}", *_words(columns, ignore), note],
        classes=classes,
    )
    return replace(_named(dataset, path), columns=tuple(columns))


def load_like(path: Path, own: Dataset, options: Mapping[str, Any]) -> Dataset:
    """Return another table, with columns encoded as those of a table that was learned from."""
    table = read_table(path, delimiter=None, named=None)
    place = _place(options.get("target", -1), table.names, path)
    name, cells = table.names[place], table.columns[place]
    rest = [i for i in range(len(table.names)) if i != place]
    others = Table(tuple(table.names[i] for i in rest), tuple(table.columns[i] for i in rest))
    found = place_columns(own.columns, others, path)
    if found is None:
        raise ValueError(
            f"{path} has {len(rest)} columns beside the target, and the run was trained on "
            f"{len(own.columns)}"
        )
    inputs = torch.from_numpy(encode_columns(own.columns, found, path))
    task = "classification" if own.classes else "regression"
    targets, classes = read_targets(np.asarray(cells), task, f"column {name!r} of {path}")
    shares = options.get("test", 0.1), options.get("validation", 0.1), options.get("seed", 0)
    parts, note = _split([Examples(inputs, targets)], *shares)
    scaled = scaled_dataset(*parts, scaling="standard", preprocessing=[note], classes=classes)
    return replace(_named(scaled, path), columns=own.columns)


def _columns(
    path: Path,
    target: str | int,
    task: str | None,
    categories: Sequence[str],
    ignore: Sequence[str],
    missing: str,
) -> tuple[Examples, list[InputColumn], tuple[str, ...], str]:
    """All rows of a table, what their columns are, the classes, and the name of the target."""
    table = read_table(path, delimiter=None, named=None)
    if len(table) < 3:
        raise ValueError(f"{path} has {len(table)} rows; train and test need at least three")
    place = _place(target, table.names, path)
    name, cells = table.names[place], table.columns[place]
    for option, named in (("categories", categories), ("ignore", ignore)):
        _check_names(option, named, table.names, name, path)
    choose("missing", missing, {"refuse": False, "mean": True})
    kept = [i for i, n in enumerate(table.names) if i != place and n not in ignore]
    require(bool(kept), f"{path} has one column; inputs and a target need two")
    columns = [_column(table, i, categories, missing == "mean") for i in kept]
    inputs = encode_columns(columns, [table.columns[i] for i in kept], path)
    targets, classes = read_targets(np.asarray(cells), task, f"column {name!r} of {path}")
    return Examples(torch.from_numpy(inputs), targets), columns, classes, name


def _check_names(
    option: str, given: Sequence[str], names: Sequence[str], target: str, path: Path
) -> None:
    whole = isinstance(given, list | tuple) and all(isinstance(name, str) for name in given)
    require(whole, f"{option} is {given!r}; give a list of names of columns")
    for name in given:
        if name not in names:
            raise unknown(f"column of {path}", name, names)
        require(name != target, f"{option} names {name!r}, the target; leave it out")


def _column(table: Table, place: int, categories: Sequence[str], fills: bool) -> InputColumn:
    """Return how a column becomes numbers; what stands for a missing one is not known yet."""
    name, cells = table.names[place], table.columns[place]
    if name in categories:
        return InputColumn(name, levels=tuple(sorted({cell.strip() for cell in cells})))
    return InputColumn(name, fill=math.nan if fills and has_gaps(cells) else None)


def _filled(
    parts: tuple[Examples, Examples | None, Examples], columns: Sequence[InputColumn], path: Path
) -> tuple[tuple[Examples, Examples | None, Examples], list[InputColumn]]:
    """Return the means of the training rows where numbers are missing."""
    means = parts[0].stored.nanmean(0)
    place, filled = 0, []
    for column in columns:
        if column.fill is not None:
            fill = float(means[place])
            known = f"{path} has no number in column {column.name!r} among the training rows"
            require(math.isfinite(fill), f"{known}; add it to ignore")
            column = replace(column, fill=fill)
        filled.append(column)
        place += len(column.parts)

    def whole(part: Examples) -> Examples:
        return Examples(torch.where(part.stored.isnan(), means, part.stored), part.targets)

    train, validation, test = parts
    return (whole(train), None if validation is None else whole(validation), whole(test)), filled


def _words(columns: Sequence[InputColumn], ignored: Sequence[str]) -> list[str]:
    """Return what a report says of the columns."""
    told = {
        "categories": [column.name for column in columns if column.levels],
        "missing values are the mean of the training rows in": [
            column.name for column in columns if column.fill is not None
        ],
        "left out": list(ignored),
    }
    return [f"{what} {', '.join(map(repr, names))}" for what, names in told.items() if names]


def load_npz(
    path: Path,
    *,
    task: str | None = None,
    test: float = 0.1,
    validation: float = 0.1,
    seed: int = 0,
    scaling: str | None = None,
    target_scaling: str = "standard",
) -> Dataset:
    """Return arrays ``x`` and ``y``; or ``x_train``, ``y_train``, ``x_test`` and ``y_test``.

    ``x_validation`` and ``y_validation`` may be there too. Bytes are taken for pixels ``[examples,
    channels, height, width]``.

    Args:
        path: the file.
        task: task as in :func:`load_csv`.
        test: the share of examples for test, where the file does not say.
        validation: the share of examples for validation, where the file does not say.
        seed: seed of the random split.
        scaling: ``"unit"`` for pixels and ``"raw"`` for other numbers, if not said.
        target_scaling: ``"standard"`` or ``"raw"`` real targets.
    """
    pieces, classes = _pieces(path, task)
    parts, note = _split(pieces, test, validation, seed)
    dataset = scaled_dataset(
        *parts,
        scaling=scaling or ("unit" if pieces[0].stored.dtype == torch.uint8 else "raw"),
        target_scaling=target_scaling,
        preprocessing=[note],
        classes=classes,
    )
    return _named(dataset, path)


def _pieces(path: Path, task: str | None) -> tuple[list[Examples], tuple[str, ...]]:
    """All examples; or those for training, perhaps for validation, and for test; and classes."""
    arrays = read_arrays(path)
    parts = [part for part in ("train", "validation", "test") if f"x_{part}" in arrays]
    keys = [(f"x_{part}", f"y_{part}") for part in parts] or [("x", "y")]
    absent = {key for pair in keys for key in pair} - set(arrays)
    if absent or parts not in ([], ["train", "test"], ["train", "validation", "test"]):
        raise ValueError(
            f"{path} has the arrays {', '.join(sorted(arrays))}; it needs x and y, or x_train, "
            "y_train, x_test and y_test"
        )
    for x, y in keys:
        if arrays[x].ndim < 2 or arrays[y].size != len(arrays[x]):
            raise ValueError(
                f"{path} has {x} of shape {arrays[x].shape} and {y} of shape {arrays[y].shape}; "
                "inputs are [examples, …], with one target each"
            )
    inputs = [_inputs(arrays[x], path, x) for x, _ in keys]
    column = np.concatenate([arrays[y].ravel() for _, y in keys])
    joined, classes = read_targets(column, task, f"y of {path}")
    targets = joined.split([len(arrays[x]) for x, _ in keys])
    return list(map(Examples, inputs, targets)), classes


def _place(target: str | int, names: Sequence[str], path: Path) -> int:
    """Return the place of the target, which no other column may share its name with."""
    whole = isinstance(target, int) and not isinstance(target, bool)
    if not (whole or isinstance(target, str)):
        raise ValueError(f"target is {target!r}; give the name or the number of a column")
    if isinstance(target, str):
        if target not in names:
            raise unknown(f"column of {path}", target, names)
        place = list(names).index(target)
    elif not -len(names) <= target < len(names):
        raise ValueError(f"{path} has {len(names)} columns, and none has number {target}")
    else:
        place = target % len(names)
    again = list(names).count(names[place])
    require(
        again == 1,
        f"{path} has {again} columns {names[place]!r}, and one of them is the target; rename them",
    )
    return place


def _inputs(array: Array, path: Path, name: str) -> Tensor:
    if array.dtype == np.uint8:
        if array.ndim != 4:
            raise ValueError(
                f"{path} has bytes {name} of shape {array.shape}; pixels are [examples, channels, "
                "height, width], and other numbers are floats"
            )
        return torch.from_numpy(array)
    require(
        array.dtype.kind in "biuf",
        f"{path} has {name} of {array.dtype}, and inputs are numbers; save them as floats",
    )
    values = array.astype(np.float64)
    if not fits(values).all():
        raise ValueError(f"{path} has values in {name} that are not finite numbers")
    return torch.from_numpy(values)


def _split(
    pieces: list[Examples], test: float, validation: float, seed: int
) -> tuple[tuple[Examples, Examples | None, Examples], str]:
    """Train, validation and test examples, as they come or at random, and how, in words."""
    if len(pieces) > 1:
        held_out = pieces[1] if len(pieces) == 3 else None
        return (pieces[0], held_out, pieces[-1]), "split as in the file"
    parts = random_split(pieces[0], test, validation, seed)
    return parts, f"random split, {test:g} test, {validation:g} validation (seed {seed})"


def _named(dataset: Dataset, path: Path) -> Dataset:
    return replace(dataset, name=path.stem, license="your own", source=str(path))
