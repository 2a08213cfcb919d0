"""Numbers that a training left behind, in whatever form they were kept."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leanbayes.errors import require

History = str | Path | Mapping[str, Sequence[Any]] | Iterable[Any]

_NAMES = {
    "nll": ("nll", "train/nll", "train_nll"),
    "kl": ("kl", "train/kl", "train_kl"),
    "weight": ("weight", "kl_weight"),
    "loss": ("loss", "train/loss", "train_loss"),
    "validation": ("validation/nll", "validation_nll", "val/nll", "val_nll"),
}
"""What numbers of a training are called: in a loop, by Lightning and in runs."""


def read_history(history: History) -> dict[str, Tensor]:
    """The numbers of a training that are known, by what they are; what is blank is left out.

    Args:
        history: a sequence of dictionaries or of what :func:`~leanbayes.elbo` gives, a dictionary
            of sequences, or the path of a CSV table.

    Example:
        >>> read_history([{"train/nll": 2.0}, {"train/nll": ""}, {"train/nll": "1.5"}])
        {'nll': tensor([2.0000, 1.5000], dtype=torch.float64)}
    """
    if isinstance(history, str | Path):
        with open(history, encoding="utf-8", newline="") as file:
            return read_history(list(csv.DictReader(file)))
    if isinstance(history, Mapping):
        columns = {str(name): list(values) for name, values in history.items()}
    else:
        columns = {}
        for entry in history:
            for name, value in _entry(entry).items():
                columns.setdefault(name, []).append(value)
    known = {}
    for what, names in _NAMES.items():
        for name in names:
            if name in columns:
                known[what] = torch.tensor(
                    [_number(v) for v in columns[name] if v not in (None, "")], dtype=torch.float64
                )
                break
    lengths = {what: len(known[what]) for what in ("nll", "kl") if what in known}
    require(len(set(lengths.values())) < 2, f"history has unequal numbers of entries: {lengths}")
    return known


def _entry(entry: Any) -> Mapping[str, Any]:
    if isinstance(entry, Mapping):
        return entry
    if isinstance(entry, tuple) and "_asdict" in dir(entry):
        fields: Mapping[str, Any] = entry._asdict()  # type: ignore[attr-defined]
        return fields
    raise TypeError(
        f"an entry of the history is a {type(entry).__name__}; give what lb.elbo gives, or "
        "dictionaries with nll, kl and weight"
    )


def _number(value: Any) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else float(value)
