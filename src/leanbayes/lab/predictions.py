"""Predictions for a file of new inputs, as a table with its uncertainties."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from leanbayes.io import load
from leanbayes.lab.data import Dataset
from leanbayes.lab.data.problems import choose, reading
from leanbayes.lab.files import write_text
from leanbayes.lab.recipe import Recipe
from leanbayes.lab.recipe_files import read_recipe
from leanbayes.lab.run import build_model, likelihood_of, load_data
from leanbayes.likelihoods import Gaussian, Likelihood
from leanbayes.predict import Prediction, predict

__all__ = ["LEVELS", "load_run", "predict_file", "read_inputs"]

LEVELS = (0.05, 0.5, 0.95)
"""Which quantiles of a regression are written."""

Array = npt.NDArray[Any]
Table = dict[str, list[Any]]


def load_run(run: str | Path) -> tuple[Recipe, nn.Module, Likelihood]:
    """The recipe, the trained model and the likelihood of a run folder."""
    folder = Path(run)
    if not (folder / "result.json").is_file():
        raise FileNotFoundError(f"{folder} holds no finished run; train or resume it first")
    recipe = read_recipe(folder / "recipe.yaml")
    likelihood = likelihood_of(recipe)
    plain = build_model(recipe.model_copy(update={"posterior": None, "prior": None}))
    if recipe.posterior is not None:
        model = load(plain, folder / "model")
    else:
        model = plain
        model.load_state_dict(_trained(folder, "model."))
    if any(True for _ in likelihood.parameters()):
        likelihood.load_state_dict(_trained(folder, "likelihood."))
    return recipe, model, likelihood


def _trained(folder: Path, prefix: str) -> dict[str, Tensor]:
    """One part of the last checkpoint."""
    checkpoints = sorted((folder / "checkpoints").glob("epoch-*.ckpt"))
    if not checkpoints:
        raise FileNotFoundError(f"{folder} has no checkpoint any more, which this model needs")
    state = torch.load(checkpoints[-1], map_location="cpu", weights_only=True)["state_dict"]
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def predict_file(
    run: str | Path, input: str | Path, output: str | Path, samples: int = 100
) -> Path:
    """Predict every row of a file and write a CSV table, one line a row.

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
    recipe, model, likelihood = load_run(run)
    dataset = load_data(recipe)
    x = read_inputs(Path(input), dataset)
    prediction = predict(
        model,
        x,
        samples=samples,
        batch_size=recipe.evaluation.batch_size,
        seed=recipe.seed,
        likelihood=likelihood,
    )
    if isinstance(likelihood, Gaussian):
        table = _numbers(prediction, dataset)
    else:
        table = _classes(prediction, dataset)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return write_text(output, text.getvalue())


def read_inputs(path: Path, dataset: Dataset) -> Tensor:
    """Raw inputs from a file, checked and scaled as the data set's are."""
    if not path.is_file():
        raise FileNotFoundError(f"input {path} does not exist")
    array = choose("kind of input file", path.suffix.lower(), _READERS)(path)
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
        raise ValueError(f"{path} has a value in row {row} that is no finite number")
    raw = torch.from_numpy(np.ascontiguousarray(array))
    return raw.long() if dataset.scaling is None else dataset.scaling(raw)


def _read_csv(path: Path) -> Array:
    with path.open(newline="", encoding="utf-8-sig") as file, reading(path):
        rows = [row for row in csv.reader(file) if row]
    if rows and not any(_is_number(text) for text in rows[0]):
        rows = rows[1:]
    if not rows:
        raise ValueError(f"{path} has no rows to predict")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise ValueError(f"{path} has {len(row)} values in row {number}, not {len(rows[0])}")
        wrong = [text for text in row if not _is_number(text)]
        if wrong:
            raise ValueError(f"{path} has {wrong[0]!r} in row {number}; inputs are numbers")
    return np.array(rows, np.float64)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_npy(path: Path) -> Array:
    with reading(path):
        return _checked(np.load(path, allow_pickle=False), path)


def _read_npz(path: Path) -> Array:
    with reading(path), np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    if "x" not in arrays and len(arrays) != 1:
        raise ValueError(f"{path} holds {', '.join(sorted(arrays))}; name the inputs x")
    return _checked(arrays["x"] if "x" in arrays else next(iter(arrays.values())), path)


def _checked(array: Array, path: Path) -> Array:
    if array.dtype.kind not in "buif" or array.ndim < 2 or not len(array):
        raise ValueError(
            f"{path} holds {array.dtype} of shape {array.shape}; give numbers, one example a row"
        )
    return array if array.dtype == np.uint8 else array.astype(np.float64)


_READERS = {".csv": _read_csv, ".npy": _read_npy, ".npz": _read_npz}


def _classes(prediction: Prediction, dataset: Dataset) -> Table:
    probs = prediction.log_probs.exp()
    probs = probs.squeeze(1) if probs.ndim == 3 and probs.shape[1] == 1 else probs
    if probs.ndim != 2:
        raise ValueError(f"{dataset.name} has several outputs an example; a table holds one label")
    count = probs.shape[1]
    names = dataset.classes if len(dataset.classes) == count else [str(i) for i in range(count)]
    columns: Table = {"label": [names[i] for i in probs.argmax(-1).tolist()]}
    columns.update({f"p_{name}": probs[:, i].tolist() for i, name in enumerate(names)})
    columns["entropy"] = prediction.entropy.flatten().tolist()
    columns["mutual_information"] = prediction.mutual_information.flatten().tolist()
    return columns


def _numbers(prediction: Prediction, dataset: Dataset) -> Table:
    """In the units of the raw targets: means move and stretch, variances stretch twice."""
    scaling = dataset.target_scaling
    stretch = torch.ones(()).double() if scaling is None else scaling.scale
    shift = torch.zeros(()).double() if scaling is None else scaling.shift
    values = {
        "mean": prediction.mean * stretch + shift,
        "aleatoric": prediction.aleatoric * stretch.square(),
        "epistemic": prediction.epistemic * stretch.square(),
    }
    for level, quantile in zip(LEVELS, prediction.quantiles(LEVELS), strict=True):
        values[f"q{round(100 * level):02d}"] = quantile * stretch + shift
    columns: Table = {}
    for name, value in values.items():
        several = value.reshape(len(value), -1)
        for i, column in enumerate(several.unbind(1)):
            columns[name if several.shape[1] == 1 else f"{name}_{i}"] = column.tolist()
    return columns
