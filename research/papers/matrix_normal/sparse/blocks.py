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
_OF_RUNS = (
    *("sparse-families", "sparse-sweep", "sparse-groups", "sparse-noise"),
    *("sparse-table-1", "sparse-table-2", "sparse-layers"),
)


def sparse_blocks(results: Path) -> OwnBlocks:
    """Return what makes blocks of sparse networks, most of them of ``RECIPE, RECIPE, …``.

    A claim names a number by ``sparsity/RECIPE COLUMN`` (see :func:`.tables.numbers`),
    ``compaction/RECIPE KIND.COLUMN`` (``fewer``, ``lost``, ``before`` or ``after`` of the
    ``bayesian`` or the ``plain`` network), ``speed/KIND COLUMN`` (``faster`` or
    ``fewer``) or ``cost/NETWORK POSTERIOR``, the time of a step relative to that of
    independent weights.
    """
    of = _Blocks(Sparse(results))
    return OwnBlocks(
        tables={
            "sparse-families": lambda names: tables.families_table(of.named(names)),
            "sparse-sweep": lambda names: tables.sweep_table(of.named(names)),
            "sparse-groups": lambda names: tables.groups_table(of.named(names)),
            "sparse-noise": lambda names: tables.noise_table(of.named(names)),
            "sparse-table-1": lambda _: tables.printed_table_1(of.named(", ".join(TABLE_1))),
            "sparse-table-2": lambda names: tables.printed_table_2(of.named(names)),
            "sparse-layers": lambda name: tables.layers_table(of.sparse.studies(name)),
            "compaction": lambda name: tables.network_table(of.sparse.studies(name, COMPACTION)),
            "compaction-speed": of.speeds,
            "step-costs": of.costs,
        },
        pictures={
            "sparse-curves": of.drawn("curves", of.sparse.histories, draw_curves),
            "sparse-sweep-curves": of.drawn("sweep", of.sparse.studies, draw_sweep),
        },
        cells={
            SPARSITY: of.sparsity_cell,
            COMPACTION: of.compaction_cell,
            "speed": of.speed_cell,
            "cost": of.cost_cell,
        },
        studies={
            **dict.fromkeys(_OF_RUNS, SPARSITY),
            COMPACTION: COMPACTION,
        },
    )


class _Blocks:
    def __init__(self, sparse: Sparse) -> None:
        self.sparse = sparse

    def named(self, names: str) -> dict[str, list[Study]]:
        return {name: self.sparse.studies(name) for name in names.split(", ")}

    def drawn(
        self,
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

    def sparsity_cell(self, name: str, column: str) -> Cell:
        cell = choose("number", column, tables.numbers(self.sparse.studies(name)))
        in_table = TABLE_1.get(name) if column == "weights" else None
        in_print = printed(name, column) if in_table is None else in_table.left
        return replace(cell, published=in_print)

    def compaction_cell(self, name: str, column: str) -> Cell:
        kind, _, what = column.partition(".")
        studies = self.sparse.studies(name, COMPACTION)
        if not studies:
            return Cell()
        whole = choose("network", kind, studies[0]["whole"])["accuracy"]["value"]
        point = _at(studies[0]["sweep"], studies[0]["log_alpha"])[kind]
        before, after = point["multiply_adds"] or (1, 1)
        accuracy = point["accuracy"]["value"]
        cells = {
            "fewer": Cell(before / after),
            "lost": Cell(100 * (whole - accuracy)),
            "before": Cell(whole),
            "after": Cell(accuracy),
        }
        return replace(choose("number", what, cells), seeds=len(studies))

    def speeds(self, _: str) -> str:
        """Return how much faster the smaller network runs, beside its multiply-adds."""
        measured = self.sparse.benchmark(_SPEED)
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

    def speed_cell(self, kind: str, column: str) -> Cell:
        """At the threshold that the study of the same network chose."""
        measured = self.sparse.benchmark(_SPEED)
        studies = self.sparse.studies(measured["name"], COMPACTION)
        if not studies:
            return Cell()
        found = choose("network", kind, _at(measured["sweep"], studies[0]["log_alpha"]))
        cells = {"fewer": Cell(found["fewer"]), "faster": Cell(1 / found["cost"]["median"])}
        return choose("number", column, cells)

    def costs(self, _: str) -> str:
        """Return the time of a training step, relative to that of independent weights."""
        networks = self.sparse.benchmark(_STEPS)["networks"]
        header = ["network", "posterior", "step, relative to DIAG", "quartiles"]
        lines = [
            [network, posterior, f"{cost['median']:.2f}", f"{cost['low']:.2f} – {cost['high']:.2f}"]
            for network, found in networks.items()
            for posterior, cost in found["costs"].items()
        ]
        return markdown_table(header, lines)

    def cost_cell(self, network: str, posterior: str) -> Cell:
        try:
            networks = self.sparse.benchmark(_STEPS)["networks"]
        except FileNotFoundError:
            return Cell(published=ITERATION)
        costs = choose("network", network, networks)["costs"]
        return Cell(choose("posterior", posterior, costs)["median"], published=ITERATION)


def _at(sweep: Sequence[Mapping[str, Any]], log_alpha: float) -> Mapping[str, Any]:
    """Return the point of a sweep at a threshold."""
    return choose("threshold", f"{log_alpha:g}", {f"{p['log_alpha']:g}": p for p in sweep})
