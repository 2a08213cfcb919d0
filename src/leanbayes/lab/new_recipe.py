"""A recipe for one's own table: what its columns are, and a network that fits it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from leanbayes.conversion.convert import convert
from leanbayes.errors import require
from leanbayes.lab.data import Dataset, load_dataset
from leanbayes.lab.data.columns import is_missing
from leanbayes.lab.data.labels import FEW
from leanbayes.lab.files import write_text
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.tables import Table, is_number, read_cells, read_table
from leanbayes.layers.layer_spec import recommended_posterior
from leanbayes.priors import He
from leanbayes.training.schedules import recommended_kl_weight

_HIDDEN, _WARMUP = 50, 0.8
_STEPS_PER_ROW, _FEWEST_STEPS, _MOST_STEPS, _FEWEST_EPOCHS = 3, 300, 5000, 20
_BATCH = 200


@dataclass(frozen=True)
class NewRecipe:
    """A recipe that was written, and what it takes the table for."""

    path: Path
    told: tuple[str, ...]


def new_recipe(
    table: str | Path,
    out: str | Path | None = None,
    *,
    target: str | None = None,
    task: str | None = None,
) -> NewRecipe:
    """Write a recipe for a CSV table; nothing is written if the table cannot be learned from.

    Columns of text with few different values are categories. A column that never varies, or holds
    many different texts, is left out. Where numbers are missing, the mean of the training rows
    stands for them. The network is a perceptron, trained by the recommended recipe.
    """
    source = Path(table)
    if not source.is_file():
        raise FileNotFoundError(f"{source} does not exist; give a CSV file")
    require(source.suffix.lower() == ".csv", f"{source} is not a .csv file; save the table as CSV")
    name = re.sub(r"[^\w.-]+", "-", source.stem).strip("-.") or "table"
    path = Path(f"{name}.yaml") if out is None else Path(out)
    options, told = _options(source, target, task)
    dataset = load_dataset(str(source.resolve()), **options)
    values = _values(name, source, options, dataset)
    check_recipe(values, str(path))
    told = [_first(dataset, source, options["target"]), *told]
    lines = "".join(f"# {sentence}\n" for sentence in told)
    text = lines + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    is_same = path.is_file() and path.read_bytes() == text.encode()  # of a call that was stopped
    if path.exists() and not is_same:
        raise FileExistsError(f"{path} exists already; delete it, or choose another --output")
    write_text(path, text)
    return NewRecipe(path, tuple(told))


def _options(
    source: Path, target: str | None, task: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Return how to load the table, and what there is to say about its columns."""
    table = read_table(source, delimiter=None, named=None)
    require(len(table.names) > 1, f"{source} has one column; inputs and a target need two")
    wanted = _target(table, target)
    kinds = {
        name: _kind(cells)
        for i, (name, cells) in enumerate(zip(table.names, table.columns, strict=True))
        if name != wanted and i != wanted
    }
    named = {kind: [n for n, k in kinds.items() if k == kind] for kind in set(kinds.values())}
    left_out = [*named.get("constant", ()), *named.get("text", ())]
    require(
        len(left_out) < len(kinds),
        f"{source} has no column to learn from: {_listed(left_out)} never vary or hold text that "
        "is different in most rows",
    )
    options: dict[str, Any] = {"target": wanted}
    told = []
    if task is not None:
        options["task"] = task
    if "category" in named:
        options["categories"] = named["category"]
        told.append(f"Categories are {_listed(named['category'])}.")
    for kind, why in (("constant", "never vary"), ("text", "hold many different texts")):
        if kind in named:
            told.append(f"Left out, because they {why}: {_listed(named[kind])}.")
    if left_out:
        options["ignore"] = left_out
    if "gaps" in named:
        options["missing"] = "mean"
        told.append(f"Numbers are missing in {_listed(named['gaps'])}; their mean stands for them.")
    return options, told


def _target(table: Table, target: str | None) -> str | int:
    """Return the target as the loader takes it: a name if it is one, else a number."""
    if target is None:
        last = table.names[-1]
        return last if table.names.count(last) == 1 else -1
    if target not in table.names and re.fullmatch(r"-?\d+", target):
        return int(target)
    return target


def _kind(cells: Sequence[str]) -> str:
    """Return what a column holds."""
    numbers = read_cells(cells)
    if numbers is not None and numbers.size and numbers.min() < numbers.max():
        return "number"
    texts = {cell.strip() for cell in cells}
    if len(texts) < 2:
        return "constant"
    known = [cell for cell in texts if not is_missing(cell)]
    if all(map(is_number, known)):
        return "number" if len(known) == len(texts) else "gaps"
    return "category" if len(texts) <= FEW else "text"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _first(dataset: Dataset, source: Path, target: str | int) -> str:
    rows = len(dataset.train) + len(dataset.validation or ()) + len(dataset.test)
    task = f"{len(dataset.classes)} classes" if dataset.classes else "a number"
    return f"{source} has {rows} rows; the target {target!r} is {task}, from {_inputs(dataset)}."


def _inputs(dataset: Dataset) -> str:
    count, width = len(dataset.columns), dataset.input_shape[0]
    return f"{count} columns" + (f" ({width} numbers)" if width != count else "")


def _values(
    name: str, source: Path, options: Mapping[str, Any], dataset: Dataset
) -> dict[str, Any]:
    """Return the recipe: sizes and likelihood are those of the table."""
    rows = len(dataset.train)
    batches = -(-rows // _BATCH)
    steps = min(max(_STEPS_PER_ROW * rows, _FEWEST_STEPS), _MOST_STEPS)
    epochs = max(-(-steps // batches), _FEWEST_EPOCHS)
    inputs, outputs = dataset.input_shape[0], len(dataset.classes) or 1
    net = convert(nn.Sequential(nn.Linear(inputs, _HIDDEN), nn.Linear(_HIDDEN, outputs)))
    weight = recommended_kl_weight(net, rows)
    warmup = {"steps": round(_WARMUP * epochs * batches), "weight": weight}
    likelihood: dict[str, Any] = {"kind": "categorical"}
    if not dataset.classes:
        likelihood = {"kind": "gaussian", "scale": 0.5, "noise": "learned"}
    return {
        "name": name,
        "data": {"name": str(source.resolve()), "options": dict(options)},
        "architecture": {
            "name": "mlp",
            "options": {
                "inputs": inputs,
                "hidden": [_HIDDEN],
                "outputs": outputs,
            },
        },
        "posterior": recommended_posterior(net).to_dict(),
        "prior": He().to_dict(),
        "kl": {"kind": "linear", "options": warmup},
        "likelihood": likelihood,
        "optimizer": {"name": "adam", "lr": 0.01},
        "learning_rate": {"kind": "cosine"},
        "training": {
            "epochs": epochs,
            "batch_size": min(_BATCH, rows),
        },
        "evaluation": {"samples": 100},
        "seed": 42,
    }
