"""Blocks of pages that show sparse networks: over epochs, by layer, by threshold, compacted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leanbayes.errors import choose
from papers.studies.sparse import tables
from papers.studies.sparse.files import COMPACTION, SPARSITY, Sparse, Study, family
from papers.studies.sparse.pictures import draw_curves, draw_sweep
from papers.studies.sparse.printed import ITERATION, TABLE_1
from papers.tools.own import OwnBlocks, Picture
from papers.tools.rows import Cell, grid

__all__ = ["sparse_blocks"]

_STEPS, _SPEED = "matrix_normal", "compaction"
"""Benchmarks."""


def sparse_blocks(results: Path) -> OwnBlocks:
    """What makes blocks of sparse networks, most of them of ``RECIPE, RECIPE, …``.

    A claim names a number by ``sparsity/RECIPE COLUMN`` (see
    :func:`papers.studies.sparse.tables.numbers`), ``compaction/RECIPE KIND.COLUMN`` (``fewer``,
    ``lost``, ``before`` or ``after`` of the ``bayesian`` or the ``plain`` network),
    ``speed/KIND COLUMN`` (``faster`` or ``fewer``) or ``cost/NETWORK POSTERIOR``, the time of a
    step relative to that of independent weights.
    """
    of = _Blocks(Sparse(results))
    return OwnBlocks(
        tables={
            "sparse-families": lambda names: tables.families_table(of.named(names)),
            "sparse-sweep": lambda names: tables.sweep_table(of.named(names)),
            "sparse-noise": lambda names: tables.noise_table(of.named(names)),
            "sparse-table-1": lambda _: tables.printed_table_1(of.named(", ".join(TABLE_1))),
            "sparse-table-2": lambda names: tables.printed_table_2(of.named(names)),
            "sparse-layers": lambda name: tables.layers_table(of.sparse.studies(name)),
            "compaction": lambda name: tables.network_table(of.sparse.studies(name, COMPACTION)),
            "compaction-speed": of.speeds,
            "step-costs": of.costs,
        },
        pictures={"sparse-curves": of.curves, "sparse-sweep-curves": of.sweep_curves},
        cells={
            SPARSITY: of.sparsity_cell,
            COMPACTION: of.compaction_cell,
            "speed": of.speed_cell,
            "cost": of.cost_cell,
        },
    )


class _Blocks:
    def __init__(self, sparse: Sparse) -> None:
        self.sparse = sparse

    def named(self, names: str) -> dict[str, list[Study]]:
        return {name: self.sparse.studies(name) for name in names.split(", ")}

    def curves(self, argument: str) -> Iterator[Picture]:
        """``RECIPE, … | caption``: accuracy, −ELBO and weights left over epochs."""
        yield from self._drawn(argument, "curves", self.sparse.histories, draw_curves)

    def sweep_curves(self, argument: str) -> Iterator[Picture]:
        """``RECIPE, … | caption``: errors over weights left, a point for each threshold."""
        yield from self._drawn(argument, "sweep", self.sparse.studies, draw_sweep)

    @staticmethod
    def _drawn(
        argument: str,
        kind: str,
        find: Callable[[str], Sequence[Any]],
        draw: Callable[[Mapping[str, Sequence[Any]]], bytes],
    ) -> Iterator[Picture]:
        """A picture of the recipes that were run, if any was."""
        what, _, caption = argument.partition(" | ")
        names = what.split(", ")
        found = {family(name): known for name in names if (known := find(name))}
        if found:
            yield Picture(f"{kind}-{names[0].rpartition('-')[0]}", caption, draw(found))

    def sparsity_cell(self, name: str, column: str) -> Cell:
        known = tables.numbers(self.sparse.studies(name))
        cell = choose("number", column, known)
        printed = TABLE_1.get(name)
        if column == "weights" and printed is not None:
            return Cell(cell.ours, cell.error, printed.left)
        return cell

    def compaction_cell(self, name: str, column: str) -> Cell:
        kind, _, what = column.partition(".")
        studies = self.sparse.studies(name, COMPACTION)
        if not studies:
            return Cell()
        (study, *_) = studies
        whole = choose("network", kind, study["whole"])["accuracy"]["value"]
        point = next(p for p in study["sweep"] if p["log_alpha"] == study["log_alpha"])[kind]
        before, after = point["multiply_adds"] or (1, 1)
        accuracy = point["accuracy"]["value"]
        cells = {
            "fewer": Cell(before / after),
            "lost": Cell(100 * (whole - accuracy)),
            "before": Cell(whole),
            "after": Cell(accuracy),
        }
        return choose("number", what, cells)

    def speeds(self, _: str) -> str:
        """How much faster the smaller network runs, beside its multiply-adds."""
        measured = self.sparse.benchmark(_SPEED)
        header = ["network", "multiply-adds fewer by", "faster by", "quartiles", "faster / fewer"]
        lines = []
        for kind, found in measured["networks"].items():
            fewer, faster = found["fewer"], 1 / found["cost"]["median"]
            low, high = 1 / found["cost"]["high"], 1 / found["cost"]["low"]
            cells = (f"{fewer:.2f} ×", f"{faster:.2f} ×", f"{low:.2f} – {high:.2f}")
            lines.append([f"{kind}, batch {measured['batch']}", *cells, f"{faster / fewer:.2f}"])
        return grid(header, lines)

    def speed_cell(self, kind: str, column: str) -> Cell:
        found = choose("network", kind, self.sparse.benchmark(_SPEED)["networks"])
        cells = {"fewer": Cell(found["fewer"]), "faster": Cell(1 / found["cost"]["median"])}
        return choose("number", column, cells)

    def costs(self, _: str) -> str:
        """The time of a training step, relative to that of independent weights."""
        networks = self.sparse.benchmark(_STEPS)["networks"]
        header = ["network", "posterior", "step, relative to DIAG", "quartiles"]
        lines = [
            [network, posterior, f"{cost['median']:.2f}", f"{cost['low']:.2f} – {cost['high']:.2f}"]
            for network, found in networks.items()
            for posterior, cost in found["costs"].items()
        ]
        return grid(header, lines)

    def cost_cell(self, network: str, posterior: str) -> Cell:
        try:
            networks = self.sparse.benchmark(_STEPS)["networks"]
        except FileNotFoundError:
            return Cell(published=ITERATION)
        costs = choose("network", network, networks)["costs"]
        return Cell(choose("posterior", posterior, costs)["median"], published=ITERATION)
