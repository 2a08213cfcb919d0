"""Your own data: a CSV table, or arrays in an NPZ file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leanbayes.lab.data.dataset import Dataset, Examples
from leanbayes.lab.data.problems import choose, reading, unknown
from leanbayes.lab.data.scaling import scaled_dataset
from leanbayes.lab.data.splits import random_split

__all__ = ["load_csv", "load_npz"]

FEW = 20
"""Whole numbers with at most so many different values are taken for classes."""

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
) -> Dataset:
    """A table with one example a row; the first line may hold the names of the columns.

    Args:
        path: the file.
        target: name or number of the column to predict; the last one if not said.
        task: ``"classification"`` or ``"regression"``. If not said, text, and whole numbers of at
            most 20 different values, are classes.
        test: the share of rows for test.
        validation: the share of rows for validation.
        seed: of the random split.
        scaling: ``"standard"`` or ``"raw"`` inputs.
        target_scaling: the same for real targets.
    """
    names, columns = _columns(path)
    place = _place(target, names, path)
    inputs = [_numbers(column, path, names[i]) for i, column in enumerate(columns) if i != place]
    if not inputs:
        raise ValueError(f"{path} has one column; inputs and a target need two")
    targets, classes = _targets(columns[place], task, path, names[place])
    train, held_out, tested = random_split(
        Examples(torch.from_numpy(np.stack(inputs, 1)), targets), test, validation, seed
    )
    return scaled_dataset(
        train,
        held_out,
        tested,
        scaling=scaling,
        target_scaling=target_scaling,
        preprocessing=[f"target {names[place]!r}", _split_words(test, validation, seed)],
        **_facts(path, classes),
    )


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
    """Arrays ``x`` and ``y``; or ``x_train``, ``y_train``, ``x_test`` and ``y_test``.

    ``x_validation`` and ``y_validation`` may be there too. Bytes are taken for pixels ``[examples,
    channels, height, width]``.

    Args:
        path: the file.
        task: as in :func:`load_csv`.
        test: the share of examples for test, where the file does not say.
        validation: the share of examples for validation, where the file does not say.
        seed: of the random split.
        scaling: ``"unit"`` for pixels and ``"raw"`` for other numbers, if not said.
        target_scaling: ``"standard"`` or ``"raw"`` real targets.
    """
    arrays = _arrays(path)
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
    joined, classes = _targets(
        np.concatenate([arrays[y].ravel() for _, y in keys]), task, path, "y"
    )
    targets = joined.split([len(arrays[x]) for x, _ in keys])
    pieces = [
        Examples(_inputs(arrays[x], path, x), y) for (x, _), y in zip(keys, targets, strict=True)
    ]
    if parts:
        train, tested, note = pieces[0], pieces[-1], "split as in the file"
        held_out = pieces[1] if len(pieces) == 3 else None
    else:
        train, held_out, tested = random_split(pieces[0], test, validation, seed)
        note = _split_words(test, validation, seed)
    return scaled_dataset(
        train,
        held_out,
        tested,
        scaling=scaling or ("unit" if train.stored.dtype == torch.uint8 else "raw"),
        target_scaling=target_scaling,
        preprocessing=[note],
        **_facts(path, classes),
    )


def _columns(path: Path) -> tuple[list[str], list[list[str]]]:
    """Names and values of the columns; without a line of names, they are numbered."""
    with path.open(newline="", encoding="utf-8-sig") as file, reading(path):
        rows = [row for row in csv.reader(file) if row]
    if not rows:
        raise ValueError(f"{path} is empty")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise ValueError(
                f"{path} has {len(row)} values in row {number} and {len(rows[0])} in the first"
            )
    names = [name.strip() for name in rows[0]]
    if any(_is_number(name) for name in names):
        names = [str(i) for i in range(len(names))]
    else:
        rows = rows[1:]
    if len(rows) < 3:
        raise ValueError(f"{path} has {len(rows)} rows; train and test need at least three")
    return names, [list(column) for column in zip(*rows, strict=True)]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _place(target: str | int, names: Sequence[str], path: Path) -> int:
    if isinstance(target, str):
        if target not in names:
            raise unknown(f"column of {path}", target, names)
        return list(names).index(target)
    if not -len(names) <= target < len(names):
        raise ValueError(f"{path} has {len(names)} columns, and none has number {target}")
    return target % len(names)


def _numbers(column: Sequence[str], path: Path, name: str) -> npt.NDArray[np.float64]:
    for number, text in enumerate(column, 1):
        if not _is_number(text) or not np.isfinite(float(text)):
            raise ValueError(
                f"{path} has {text!r} in column {name!r}, example {number}; inputs are finite "
                "numbers"
            )
    return np.array(column, np.float64)


def _targets(
    column: Sequence[str] | Array, task: str | None, path: Path, name: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Class labels ``[examples]`` with their names, or real numbers ``[examples, 1]``."""
    values = np.asarray(column)
    text = values.dtype.kind in "US" and not all(_is_number(value) for value in values)
    if not text:
        values = values.astype(np.float64)
    kinds = np.unique(values)
    whole = not text and bool((kinds == np.round(kinds)).all())
    guess = "classification" if text or (whole and len(kinds) <= FEW) else "regression"
    if choose("task", task or guess, {"classification": True, "regression": False}):
        labels = np.searchsorted(kinds, values).astype(np.int64)
        return torch.from_numpy(labels), tuple(str(k) if text else f"{k:g}" for k in kinds)
    return torch.from_numpy(_numbers([str(v) for v in values], path, name))[:, None], ()


def _arrays(path: Path) -> dict[str, Array]:
    with reading(path), np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def _inputs(array: Array, path: Path, name: str) -> Tensor:
    if array.dtype == np.uint8:
        if array.ndim != 4:
            raise ValueError(
                f"{path} has bytes {name} of shape {array.shape}; pixels are [examples, channels, "
                "height, width], and other numbers are floats"
            )
        return torch.from_numpy(array)
    values = array.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"{path} has values in {name} that are not finite numbers")
    return torch.from_numpy(values)


def _split_words(test: float, validation: float, seed: int) -> str:
    return f"random split, {test:g} test, {validation:g} validation (seed {seed})"


def _facts(path: Path, classes: tuple[str, ...]) -> dict[str, Any]:
    return {
        "name": path.stem,
        "task": "classification" if classes else "regression",
        "classes": classes,
        "licence": "your own",
        "source": str(path),
    }
