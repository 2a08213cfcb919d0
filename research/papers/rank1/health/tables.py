"""The tables of a folder, found whatever their case and packing, and read one row at a time."""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from leanbayes.lab.data.files import opened
from leanbayes.lab.files import reading

PACKINGS = ("", ".gz", ".xz", ".bz2")
"""Endings after ``.csv``, the one that is read first in front."""

Row = Mapping[str, str]
"""The cells of a row by column, in lower case."""


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

    def rows(self, name: str, *columns: str) -> Iterator[Row]:
        """Read a table row by row; it must have these columns, in any case."""
        if name not in self.files:
            has = f"it has {', '.join(sorted(self.files))}" if self.files else "it has no tables"
            raise FileNotFoundError(
                f"{self.folder} lacks {name}.csv (plain, .gz, .xz or .bz2), and no record can be "
                f"made without it; {has}"
            )
        path = self.files[name]
        with reading(path), opened(path) as packed:
            rows = csv.DictReader(io.TextIOWrapper(packed, "utf-8-sig", newline=""))
            rows.fieldnames = [cell.strip().lower() for cell in rows.fieldnames or ()]
            absent = [column for column in columns if column not in rows.fieldnames]
            for row in rows if not absent else ():
                if None in row.values():
                    raise ValueError(f"line {rows.line_num} has too few cells")
                yield row
        if absent:
            raise ValueError(
                f"{path} has no column {absent[0]!r}; take the table as MIMIC-III has it"
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
    found = {
        name.removesuffix(f".csv{packing}").upper(): path
        for packing in reversed(PACKINGS)
        for name, path in files.items()
        if name.endswith(f".csv{packing}")
    }
    return Tables(folder, found)
