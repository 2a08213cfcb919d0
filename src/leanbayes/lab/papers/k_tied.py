"""The k-tied Normal [k-tied]: the published rows that no recipe has.

Rows of trained models come from recipes. Truncations of a trained mean field [k-tied, Table 2;
ICML, Figure 5 and Table 3; k-tied suppl., Figure 2] come from ``leanbayes compress``, one file for
each run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from leanbayes.errors import choose
from leanbayes.lab.files import read_object
from leanbayes.lab.papers import Cell, Row

__all__ = ["POST_TRAINING", "STEP_COST", "compressed_runs", "post_training", "read_compressed"]

_MLP_CNN_LSTM = ("negative_elbo", "nll", "accuracy")
_RESNET = (*_MLP_CNN_LSTM, "brier", "ece")
_MLP = ((0.431, 0.1, 0.976), (3.41, 0.677, 0.936), (0.456, 0.107, 0.976), (0.45, 0.106, 0.976))

POST_TRAINING: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    run: {
        name: dict(zip(columns, values, strict=True))
        for name, values in zip(
            ("full", "truncated 1", "truncated 2", "truncated 3"), rows, strict=True
        )
    }
    for run, columns, rows in (
        ("mnist-mlp-full", _MLP_CNN_LSTM, _MLP),
        ("mnist-mlp-full-decay", _MLP_CNN_LSTM, _MLP),
        (
            "cifar100-lenet-full",
            _MLP_CNN_LSTM,
            ((3.83, 2.23, 0.421), (4.33, 2.3, 0.417), (3.88, 2.24, 0.422), (3.86, 2.24, 0.421)),
        ),
        (
            "imdb-lstm-full",
            _MLP_CNN_LSTM,
            (
                (0.536, 0.493, 0.801),
                (0.687, 0.491, 0.8),
                (0.621, 0.494, 0.801),
                (0.595, 0.493, 0.801),
            ),
        ),
        (
            "cifar10-resnet-full",
            _RESNET,
            (
                (122.61, 0.495, 0.835, 0.239, 0.0477),
                (122.57, 0.658, 0.817, 0.305, 0.1642),
                (122.77, 0.503, 0.832, 0.242, 0.054),
                (122.67, 0.501, 0.832, 0.242, 0.0541),
            ),
        ),
        (
            "cifar10-resnet-he-full",
            _MLP_CNN_LSTM,
            (
                (1.379, 0.6384, 0.79),
                (5.428, 1.485, 0.57),
                (1.448, 0.648, 0.788),
                (1.411, 0.646, 0.789),
            ),
        ),
    )
}
"""Published metrics of a mean field and its truncations, by recipe; Brier scores less one there."""

STEP_COST: Mapping[str, float] = {"mean field": 7.17 / 2.00, "k-tied, rank 2": 6.14 / 2.00}
"""Milliseconds of a training step by those of the point estimate (ICML, Table 4)."""


def post_training(name: str, found: Mapping[str, Any] | None) -> list[Row]:
    """The rows of a trained mean field, its truncations and its tied versions.

    Args:
        name: of its recipe.
        found: what :func:`leanbayes.lab.compression.compress_run` says; published rows if ``None``.
    """
    published = choose("truncated run", name, POST_TRAINING)
    columns = _RESNET if "resnet" in name else _MLP_CNN_LSTM
    ours: Mapping[str, Any] = found["rows"] if found else {}
    return [
        Row(
            name,
            title,
            _cells(ours.get(title, {}), published.get(title, {}), columns),
            ran=found is not None,
            seed=found["seed"] if found else None,
        )
        for title in ours or published
    ]


def compressed_runs(folder: Path) -> dict[str, Mapping[str, Any]]:
    """What ``leanbayes compress`` wrote below a folder, by recipe."""
    files = [*sorted(folder.rglob("compress.json")), *sorted(folder.glob("post_training/*.json"))]
    found = [read_compressed(file) for file in files]
    return {run["name"]: run for run in found if run["name"] in POST_TRAINING}


def read_compressed(file: Path) -> Mapping[str, Any]:
    """What ``leanbayes compress`` wrote to this file."""
    keys = {"name", "rows", "seed", "spectra", "maps"}
    return read_object(file, keys, "what leanbayes compress writes", "compress its run")


def _cells(
    row: Mapping[str, Any], printed: Mapping[str, float], columns: Iterable[str]
) -> dict[str, Cell]:
    metrics = row.get("metrics", {})
    cells = {
        name: Cell(
            metrics.get(name, {}).get("value"),
            metrics.get(name, {}).get("error"),
            printed.get(name),
        )
        for name in columns
    }
    if row:
        cells["kl"] = Cell(metrics["kl"]["value"])
        cells["parameters"] = Cell(row["parameters"])
    return cells
