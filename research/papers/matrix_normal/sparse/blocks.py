"""Blocks of pages that show sparse networks: over epochs, by layer, by threshold, compacted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leanbayes.errors import choose
from research.papers.matrix_normal.sparse import tables
from research.papers.matrix_normal.sparse.files import (
    COMPACTION,
    SPARSITY,
    Sparse,
    Study,
    family,
    printed,
)
from research.papers.matrix_normal.sparse.pictures import draw_curves, draw_sweep
from research.papers.matrix_normal.sparse.published import ITERATION, TABLE_1
from research.publishing.cells import Cell
from research.publishing.paper_blocks import OwnBlocks, Picture
from research.publishing.tables import markdown_table

_STEPS, _SPEED = "matrix_normal", "compaction"
"""Benchmarks."""
_OF_RUNS: Mapping[str, Callable[[tables.Named], str]] = {
    "sparse-families": tables.families_table,
    "sparse-sweep": tables.sweep_table,
    "sparse-groups": tables.groups_table,
    "sparse-noise": tables.noise_table,
    "sparse-table-1": tables.printed_table_1,
    "sparse-table-2": tables.printed_table_2,
    "sparse-layers": tables.layers_table,
}


def sparse_blocks(results: Path) -> OwnBlocks:
    """Return what makes blocks of sparse networks, most of them of ``RECIPE, RECIPE, …``.

    A claim names a number by ``sparsity/RECIPE COLUMN`` (see :func:`.tables.numbers`),
    ``compaction/RECIPE KIND.COLUMN`` (``fewer``, ``lost``, ``before`` or ``after`` of the
    ``bayesian`` or the ``plain`` network), ``speed/KIND COLUMN`` (``faster`` or
    ``fewer``) or ``cost/NETWORK POSTERIOR``, the time of a step relative to that of
    independent weights.
    """
    of = Sparse(results)

    def named(names: str) -> dict[str, list[Study]]:
        return {name: of.studies(name) for name in names.split(", ")}

    def sparsity_cell(name: str, column: str) -> Cell:
        cell = choose("number", column, tables.numbers(of.studies(name)))
        in_table = TABLE_1.get(name) if column == "weights" else None
        in_print = printed(name, column) if in_table is None else in_table.left
        return replace(cell, published=in_print)

    return OwnBlocks(
        tables={
            **{
                kind: lambda names, make=make: make(named(names))  # type: ignore[misc]
                for kind, make in _OF_RUNS.items()
            },
            "compaction": lambda name: tables.network_table(of.studies(name, COMPACTION)),
            "compaction-speed": lambda _: _speeds(of.benchmark(_SPEED)),
            "step-costs": lambda _: _costs(of.benchmark(_STEPS)),
        },
        pictures={
            "sparse-curves": _drawn("curves", of.histories, draw_curves),
            "sparse-sweep-curves": _drawn("sweep", of.studies, draw_sweep),
        },
        cells={
            SPARSITY: sparsity_cell,
            COMPACTION: lambda name, column: _compaction_cell(of.studies(name, COMPACTION), column),
            "speed": lambda kind, column: _speed_cell(of, kind, column),
            "cost": lambda network, posterior: _cost_cell(of, network, posterior),
        },
        studies={**dict.fromkeys(_OF_RUNS, SPARSITY), COMPACTION: COMPACTION},
    )


def _drawn(
    kind: str,
    find: Callable[[str], Sequence[Any]],
    draw: Callable[[Mapping[str, Sequence[Any]]], bytes],
) -> Callable[[str], list[Picture]]:
    """Return what draws the recipes that were run, if any was."""

    def drawn(argument: str) -> list[Picture]:
        names = argument.split(", ")
        found = {family(name): known for name in names if (known := find(name))}
        file = f"{kind}-{names[0].rpartition('-')[0]}"
        return [Picture(file, draw(found))] if found else []

    return drawn


def _compaction_cell(studies: Sequence[Study], column: str) -> Cell:
    kind, _, what = column.partition(".")
    if not studies:
        return Cell()
    whole = choose("network", kind, studies[0]["whole"])["accuracy"]["value"]
    point = _at(studies[0]["sweep"], studies[0]["log_alpha"])[kind]
    before, after = point["multiply_adds"] or (1, 1)
    accuracy = point["accuracy"]["value"]
    numbers = {
        "fewer": before / after,
        "lost": 100 * (whole - accuracy),
        "before": whole,
        "after": accuracy,
    }
    return Cell(choose("number", what, numbers), seeds=len(studies))


def _speeds(measured: Study) -> str:
    """Return how much faster the smaller network runs, beside its multiply-adds."""
    header = ["network", "zeroed from log α", "multiply-adds fewer by", "faster by"]
    lines = []
    for kind, label in tables.NETWORKS.items():
        for point in measured["sweep"]:
            fewer, cost = point[kind]["fewer"], point[kind]["cost"]
            faster = 1 / cost["median"]
            cells = (f"{point['log_alpha']:g}", f"{fewer:.2f} ×", f"{faster:.2f} ×")
            between = f"{1 / cost['high']:.2f} – {1 / cost['low']:.2f}"
            lines.append([label, *cells, between, f"{faster / fewer:.2f}"])
            label = ""
    return markdown_table([*header, "quartiles", "faster / fewer"], lines)


def _speed_cell(of: Sparse, kind: str, column: str) -> Cell:
    """At the threshold that the study of the same network chose."""
    measured = of.benchmark(_SPEED)
    studies = of.studies(measured["name"], COMPACTION)
    if not studies:
        return Cell()
    found = choose("network", kind, _at(measured["sweep"], studies[0]["log_alpha"]))
    numbers = {"fewer": found["fewer"], "faster": 1 / found["cost"]["median"]}
    return Cell(choose("number", column, numbers))


def _costs(measured: Study) -> str:
    """Return the time of a training step, relative to that of independent weights."""
    header = ["network", "posterior", "step, relative to DIAG", "quartiles"]
    lines = [
        [network, posterior, f"{cost['median']:.2f}", f"{cost['low']:.2f} – {cost['high']:.2f}"]
        for network, found in measured["networks"].items()
        for posterior, cost in found["costs"].items()
    ]
    return markdown_table(header, lines)


def _cost_cell(of: Sparse, network: str, posterior: str) -> Cell:
    try:
        networks = of.benchmark(_STEPS)["networks"]
    except FileNotFoundError:
        return Cell(published=ITERATION)
    costs = choose("network", network, networks)["costs"]
    return Cell(choose("posterior", posterior, costs)["median"], published=ITERATION)


def _at(sweep: Sequence[Mapping[str, Any]], log_alpha: float) -> Mapping[str, Any]:
    """Return the point of a sweep at a threshold."""
    return choose("threshold", f"{log_alpha:g}", {f"{p['log_alpha']:g}": p for p in sweep})
