"""Predictions for a file of new inputs, as a table with its uncertainties."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leanbayes.errors import choose, require
from leanbayes.lab.data import Dataset, Scaling
from leanbayes.lab.data.columns import InputColumn, encode_columns, place_columns
from leanbayes.lab.data.images import read_arrays
from leanbayes.lab.files import reading
from leanbayes.lab.runs import Run
from leanbayes.lab.tables import is_number, read_table, write_table
from leanbayes.prediction.predict import Prediction, predict_batches

LEVELS = (0.05, 0.5, 0.95)
"""Which quantiles of a regression are written."""

Array = npt.NDArray[Any]
Table = dict[str, list[Any]]


def predict_file(
    run: str | Path, input: str | Path, output: str | Path, samples: int = 100
) -> Path:
    """Predict every row of a file and write a CSV table, one line per row.

    Classes get ``label``, a probability ``p_…`` each, ``entropy`` and ``mutual_information`` (in
    nats); numbers get ``mean``, the variances ``aleatoric`` and ``epistemic``, and the quantiles
    ``q05``, ``q50`` and ``q95``, all in the units of the raw targets.

    Args:
        run: a finished run folder.
        input: raw inputs, as the run's data were before scaling: ``.csv`` with or without a line of
            names, ``.npy``, or ``.npz`` with an array ``x`` (or only one array).
        output: the table.
        samples: predictive samples (of every member).
    """
    source = Run(run)
    source.check_result()
    model, likelihood = source.load()
    x = read_inputs(Path(input), source.dataset)
    columns: Table = {}
    seed = source.recipe.seed
    for part in predict_batches(model, x, samples=samples, seed=seed, likelihood=likelihood):
        tabulate = _classes if part.has_classes else _numbers
        for name, values in tabulate(part, source.dataset).items():
            columns.setdefault(name, []).extend(values)
    return write_table(output, columns)


def read_inputs(path: Path, dataset: Dataset) -> Tensor:
    """Return raw inputs from a file, checked and scaled as the data set's are."""
    if not path.is_file():
        raise FileNotFoundError(f"input {path} does not exist")
    reader = choose("kind of input file", path.suffix.lower(), _READERS)
    array = _read_csv(path, dataset.columns) if reader is _read_csv else reader(path)
    shape = dataset.input_shape
    if array.shape[1:] != shape:
        if array.ndim != 2 or array.shape[1] != math.prod(shape):
            given = f"{array.shape[1]} columns" if array.ndim == 2 else f"shape {array.shape}"
            raise ValueError(
                f"{path} has {given}, and the run was trained on {math.prod(shape)} columns "
                f"(inputs of shape {shape})"
            )
        array = array.reshape(len(array), *shape)
    if not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0]) + 1
        raise ValueError(f"{path} has a value in row {row} that is not a finite number")
    raw = torch.from_numpy(np.ascontiguousarray(array))
    return raw.long() if dataset.scaling is None else dataset.scaling(raw)


def _read_csv(path: Path, columns: Sequence[InputColumn] = ()) -> Array:
    table = read_table(path, delimiter=None, named=None)
    require(len(table) > 0, f"{path} has no rows to predict")
    cells = place_columns(columns, table, path)
    if columns and cells is not None:
        return encode_columns(columns, cells, path)
    require(
        not columns,
        f"{path} has {len(table.columns)} columns, and the run was trained on {len(columns)} "
        f"columns ({', '.join(repr(column.name) for column in columns)})",
    )
    rows = list(zip(*table.columns, strict=True))
    for number, row in enumerate(rows, 1):
        for cell in row:
            require(is_number(cell), f"{path} has {cell!r} in row {number}; inputs are numbers")
    return np.array(rows, np.float64)


def _read_npy(path: Path) -> Array:
    with reading(path):
        return _checked(np.load(path, allow_pickle=False), path)


def _read_npz(path: Path) -> Array:
    arrays = read_arrays(path)
    if "x" not in arrays and len(arrays) != 1:
        raise ValueError(f"{path} holds {', '.join(sorted(arrays))}; name the inputs x")
    return _checked(arrays["x"] if "x" in arrays else next(iter(arrays.values())), path)


def _checked(array: Array, path: Path) -> Array:
    if array.dtype.kind not in "buif" or array.ndim < 2 or not len(array):
        raise ValueError(
            f"{path} holds {array.dtype} of shape {array.shape}; give numbers, one example per row"
        )
    return array if array.dtype == np.uint8 else array.astype(np.float64)


_READERS = {".csv": _read_csv, ".npy": _read_npy, ".npz": _read_npz}


def _classes(prediction: Prediction, dataset: Dataset) -> Table:
    probs = prediction.log_probs.exp()
    probs = probs.squeeze(1) if probs.ndim == 3 and probs.shape[1] == 1 else probs
    if probs.ndim != 2:
        raise ValueError(f"{dataset.name} has several outputs per example; a table holds one label")
    count = probs.shape[1]
    names = dataset.classes if len(dataset.classes) == count else [str(i) for i in range(count)]
    return {
        "label": [names[i] for i in probs.argmax(-1).tolist()],
        **{f"p_{name}": probs[:, i].tolist() for i, name in enumerate(names)},
        "entropy": prediction.entropy.flatten().tolist(),
        "mutual_information": prediction.mutual_information.flatten().tolist(),
    }


def _numbers(prediction: Prediction, dataset: Dataset) -> Table:
    """In the units of the raw targets: means move and stretch, variances stretch twice."""
    scaling = dataset.target_scaling or Scaling()
    stretch, shift = scaling.scale, scaling.shift
    values: dict[str, Tensor] = {}
    if "mean" in prediction.answers:
        values["mean"] = prediction.mean * stretch + shift
        values["aleatoric"] = prediction.aleatoric * stretch.square()
        values["epistemic"] = prediction.epistemic * stretch.square()
    if "quantiles" in prediction.answers:
        for level, quantile in zip(LEVELS, prediction.quantiles(LEVELS), strict=True):
            values[f"q{round(100 * level):02d}"] = quantile * stretch + shift
    if not values:
        kind = type(prediction.likelihood).__name__
        raise ValueError(f"{kind} has neither a mean nor quantiles, so there is nothing to write")
    columns: Table = {}
    for name, value in values.items():
        several = value.reshape(len(value), -1)
        for i, column in enumerate(several.unbind(1)):
            columns[name if several.shape[1] == 1 else f"{name}_{i}"] = column.tolist()
    return columns
