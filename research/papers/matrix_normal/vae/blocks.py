"""Blocks of pages that show auto-encoders: Table 3, what it says, curves and pictures."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from leanbayes.errors import choose
from leanbayes.lab.files import read_object
from research.papers.matrix_normal.vae.judge import judged, unpacked
from research.papers.matrix_normal.vae.likelihood import LogLikelihood
from research.papers.matrix_normal.vae.pictures import sheet
from research.papers.matrix_normal.vae.settings import commands
from research.publishing.cells import Cell, seeds_of
from research.publishing.paper_blocks import OwnBlocks, Picture
from research.publishing.plots import paths
from research.publishing.tables import markdown_table

FOLDER = "vae"
_ENCODERS = {"diag": "DIAG", "mn": "MN", "mv": "MV"}


class _Printed(NamedTuple):
    log_likelihood: float
    bound: float


PUBLISHED = {
    "40-diag": _Printed(-89.14, -94.36),
    "40-mn-20x2": _Printed(-88.8, -94.03),
    "40-mv": _Printed(-87.94, -93.01),
    "9-diag": _Printed(-96.80, -101.19),
    "9-mn-3x3": _Printed(-96.61, -101.08),
    "9-mv": _Printed(-96.20, -100.87),
}
"""Log likelihood and ELBO of [matrix normal, Table 3], by size, family and shape."""


def vae_blocks(results: Path) -> OwnBlocks:
    """Return what makes the blocks ``vae``, ``vae-says``, ``vae-curves`` and ``vae-sheets``.

    A claim names a number of a row by ``vae/40-mn-20x2 log_likelihood`` or ``… bound``. Rows that
    have not been trained are shown as such, and have no pictures.
    """
    of = _Rows(results / FOLDER)
    return OwnBlocks(
        tables={"vae": lambda _: of.table(), "vae-says": lambda _: of.conclusions()},
        pictures={"vae-curves": of.curves, "vae-sheets": of.sheets},
        cells={"vae": of.cell},
    )


class _Row:
    """An auto-encoder with all its seeds."""

    def __init__(self, name: str, studies: list[Mapping[str, Any]]) -> None:
        self.name, self.studies = name, studies
        self.judged: list[LogLikelihood] = [judged(study) for study in studies]
        self.trained = [study["parts"]["training"] for study in studies]
        self.size, family, *shape = name.split("-")
        self.title = " ".join([_ENCODERS[family], *(part.replace("x", " × ") for part in shape)])

    def mean(self, column: str) -> float | None:
        values = {
            "log_likelihood": [each.score.value for each in self.judged],
            "bound": [each.bound.value for each in self.judged],
            "sampling_error": [each.sampling_error for each in self.judged],
        }
        known = choose("number", column, values)
        return fmean(known) if known else None

    def cell(self, column: str) -> Cell:
        published = getattr(PUBLISHED.get(self.name), column, None)
        return Cell(self.mean(column), published=published, seeds=len(self.studies))

    @property
    def equal_settings(self) -> set[tuple[tuple[str, str], ...]]:
        """The settings of all seeds, without what rows differ in."""
        own = ("encoder", "latent", "seed")
        return {
            tuple((key, str(value)) for key, value in part["settings"].items() if key not in own)
            for part in self.trained
        }

    def line(self) -> list[str]:
        """Return the row in Table 3."""
        scores = [_beside(self.cell(column)) for column in ("log_likelihood", "bound")]
        if not self.trained:
            return [self.size, self.title, "–", *scores, "–", "–", "not run"]
        epochs, best = (
            " and ".join(str(part[key]) for part in self.trained)
            for key in ("epochs", "best_epoch")
        )
        seeds = seeds_of([part["settings"]["seed"] for part in self.trained])
        return [
            self.size,
            self.title,
            str(self.trained[0]["encoder_outputs"]),
            *scores,
            f"{self.mean('sampling_error'):.2g}",
            f"{self.judged[0].images} × {self.judged[0].samples}",
            f"{seeds}, {epochs} epochs, best after {best}",
        ]


class _Rows:
    """The rows in a folder of results, in the order of the paper."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rows(self) -> dict[str, _Row]:
        found: dict[str, list[Mapping[str, Any]]] = {name: [] for name in PUBLISHED}
        for file in sorted(self.folder.glob("*-seed*.json")):
            again = "run python -m research papers judge-vae"
            study = read_object(file, {"settings", "parts"}, "a study", again)
            found.setdefault(file.stem.rpartition("-seed")[0], []).append(study)
        return {name: _Row(name, studies) for name, studies in found.items()}

    def table(self) -> str:
        header = ["size of z", "encoder", "outputs", "log likelihood", "ELBO", "sampling error"]
        header += ["images × samples", "run"]
        rows = self.rows().values()
        trained = [part["settings"] for row in rows for part in row.trained]
        again = commands(trained, "papers judge-vae runs/vae-*")
        return "\n\n".join(
            filter(None, (markdown_table(header, (row.line() for row in rows)), again))
        )

    def conclusions(self) -> str:
        """Return a sentence for each size of the latent vector."""
        rows = [row for name, row in self.rows().items() if name in PUBLISHED]
        sizes = dict.fromkeys(row.size for row in rows)
        return "\n".join(
            f"- {_compared(size, [row for row in rows if row.size == size])}" for size in sizes
        )

    def cell(self, name: str, column: str) -> Cell:
        return choose("auto-encoder", name, self.rows()).cell(column)

    def curves(self, size: str) -> Iterator[Picture]:
        """The ELBO of validation images, once the KL has its whole weight, for a size of z."""
        lines = {}
        for row in self.rows().values():
            if row.size == size and row.trained:
                curve = row.trained[0]["curve"]
                at = [i for i, weight in enumerate(curve["kl_weight"]) if weight == 1.0]
                kept = [[curve[name][i] for i in at] for name in ("epoch", "validation_bound")]
                lines[row.title] = (kept[0], kept[1])
        if lines:
            png = paths(lines, "epoch", "ELBO of validation images")
            yield Picture(f"vae-curves-{size}", png)

    def sheets(self, what: str) -> Iterator[Picture]:
        """``NAME KIND``: reconstructions, samples or a walk of a row's first seed."""
        name, _, kind = what.partition(" ")
        row = choose("auto-encoder", name, self.rows())
        if row.studies:
            pictures = row.studies[0]["parts"]["pictures"]
            height, width = pictures["shape"]
            packed = choose("picture", kind, {k: v for k, v in pictures.items() if k != "shape"})
            png = sheet(unpacked(packed), (height, width))
            yield Picture(f"vae-{name}-{kind}", png)


def _beside(cell: Cell) -> str:
    """Return a number with two decimals, as in the paper, and the paper's in brackets."""
    ours = "–" if cell.ours is None else _written(cell.ours)
    return ours if cell.published is None else f"{ours} ({_written(cell.published)})"


def _written(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _compared(size: str, rows: list[_Row]) -> str:
    """Return how the three families compare in ELBO and log likelihood."""
    absent = [row.title for row in rows if not row.studies]
    if absent:
        return f"z of {size} numbers: {', '.join(absent)} not run yet."
    if len(set.union(*(row.equal_settings for row in rows))) > 1:
        return f"z of {size} numbers: rows were trained with different settings; no comparison."
    sentences = [
        _ordered(rows, "bound", "ELBO"),
        _ordered(rows, "log_likelihood", "Log likelihood"),
    ]
    return f"z of {size} numbers: {'. '.join(sentences)}."


def _ordered(rows: list[_Row], column: str, title: str) -> str:
    values = [row.mean(column) or 0.0 for row in rows]
    told = ", ".join(f"{row.title} {_written(v)}" for row, v in zip(rows, values, strict=True))
    rises = all(low < high for low, high in pairwise(values))
    order = "in the paper's order" if rises else "not in the paper's order"
    return f"{title} {order}: {told}"
