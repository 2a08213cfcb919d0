"""The tables of a folder, found whatever their case and packing, and read one row at a time."""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from leanbayes.lab.data.files import opened
from leanbayes.lab.files import reading

PACKINGS = ("", ".gz", ".xz", ".bz2")
"""Endings after ``.csv``, the one that is read first in front."""


@dataclass(frozen=True)
class Tables:
    """CSV tables of one folder.

    Args:
        folder: where they lie.
        files: by their names in capitals, such as ``ADMISSIONS``.
    """

    folder: Path
    files: Mapping[str, Path]

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def rows(
        self, name: str, columns: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> Iterator[tuple[str, ...]]:
        """The cells of some columns, row by row; nothing else of the table is kept.

        Args:
            name: of the table.
            columns: names of columns that it must have, in any case.
            optional: more of them; where the table has no such column, cells are empty.
        """
        path = self._path(name)
        with reading(path), opened(path) as packed:
            lines = csv.reader(io.TextIOWrapper(packed, "utf-8-sig", newline=""))
            header = [cell.strip().lower() for cell in next(lines, [])]
            places = [_place(column, header) for column in (*columns, *optional)]
            absent = [c for c, place in zip(columns, places, strict=False) if place is None]
            if not absent:
                yield from _cells(lines, places)
        if absent:
            raise ValueError(
                f"{path} has no column {absent[0]!r}; take the table as MIMIC-III has it"
            )

    def _path(self, name: str) -> Path:
        if name in self.files:
            return self.files[name]
        found = f"it has {', '.join(sorted(self.files))}" if self.files else "it has no tables"
        raise FileNotFoundError(
            f"{self.folder} lacks {name}.csv (plain, .gz, .xz or .bz2), and no record can be made "
            f"without it; {found}"
        )


def find_tables(folder: Path) -> Tables:
    """The tables of a folder: ``ADMISSIONS.csv``, ``admissions.csv.gz``, ``LABEVENTS.csv.xz`` …

    Where a table lies there both plain and packed, the plain one is read.
    """
    if not folder.is_dir():
        raise NotADirectoryError(
            f"{folder} is not a folder; give the one that holds ADMISSIONS.csv and the other tables"
        )
    files = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_file()}
    names = {name.partition(".csv")[0] for name in files if ".csv" in name}
    found = {
        name.upper(): files[f"{name}.csv{packing}"]
        for name in sorted(names)
        for packing in reversed(PACKINGS)
        if f"{name}.csv{packing}" in files
    }
    return Tables(folder, found)


def _place(column: str, header: list[str]) -> int | None:
    return header.index(column) if column in header else None


def _cells(lines: Iterator[list[str]], places: list[int | None]) -> Iterator[tuple[str, ...]]:
    known = [place for place in places if place is not None]
    if len(known) == len(places) > 1:
        yield from map(itemgetter(*known), filter(None, lines))
        return
    for row in filter(None, lines):
        yield tuple("" if place is None else row[place] for place in places)
