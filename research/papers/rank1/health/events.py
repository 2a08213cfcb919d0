"""Events of patients from the tables of MIMIC-III: what was noted, when it was known, its value."""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leanbayes.errors import choose
from research.papers.rank1.health.stays import DAY, Stays, minute
from research.papers.rank1.health.tables import Row, Tables


@dataclass(frozen=True)
class EventTable:
    """How a table tells of events.

    Args:
        code: the column that says what happened.
        times: columns that say when; the first that is filled counts. One that is called a date
            has no hours: such an event is known when its day is over. Without columns it is known
            when the patient is discharged (codes for the bill, which tell the outcome).
        values: columns of a measured number; the first that is filled counts.
        unit: the column of its unit.
        void: a column and the cells in it that make a row void.
    """

    code: str
    times: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    unit: str = ""
    void: tuple[str, frozenset[str]] = ("", frozenset())


_TAKEN_BACK = ("statusdescription", frozenset({"Rewritten"}))

EVENT_TABLES = {
    "ADMISSIONS": EventTable("admission_type", ("admittime",)),
    "CHARTEVENTS": EventTable(
        "itemid",
        ("charttime",),
        values=("valuenum", "value"),
        unit="valueuom",
        void=("error", frozenset({"1"})),
    ),
    "DIAGNOSES_ICD": EventTable("icd9_code"),
    "ICUSTAYS": EventTable("first_careunit", ("intime",)),
    "INPUTEVENTS_CV": EventTable("itemid", ("charttime",)),
    "INPUTEVENTS_MV": EventTable("itemid", ("starttime",), void=_TAKEN_BACK),
    "LABEVENTS": EventTable(
        "itemid", ("charttime",), values=("valuenum", "value"), unit="valueuom"
    ),
    "MICROBIOLOGYEVENTS": EventTable("spec_itemid", ("charttime", "chartdate")),
    "OUTPUTEVENTS": EventTable(
        "itemid",
        ("charttime",),
        values=("value",),
        unit="valueuom",
        void=("iserror", frozenset({"1"})),
    ),
    "PRESCRIPTIONS": EventTable("drug", ("startdate",)),
    "PROCEDUREEVENTS_MV": EventTable("itemid", ("starttime",), void=_TAKEN_BACK),
    "PROCEDURES_ICD": EventTable("icd9_code"),
    "SERVICES": EventTable("curr_service", ("transfertime",)),
    "TRANSFERS": EventTable("curr_careunit", ("intime",)),
}
"""What events are read from. Of a culture the specimen counts and not what grew, which is known
days later."""


@dataclass(frozen=True, eq=False)
class Events:
    """Events by patient and time.

    Args:
        patient: numbers as in :class:`Stays`, rising.
        time: minute when it was known, rising for each patient.
        code: numbers of ``names``.
        value: the measured number, or NaN.
        names: what happened: table, code and unit.
        lost: rows without a known patient, a time or a code, by table.
    """

    patient: npt.NDArray[np.int32]
    time: npt.NDArray[np.int32]
    code: npt.NDArray[np.int32]
    value: npt.NDArray[np.float32]
    names: tuple[str, ...]
    lost: dict[str, int]

    def __len__(self) -> int:
        return len(self.code)


def read_events(tables: Tables, stays: Stays, names: Sequence[str]) -> Events:
    """Read the events that a prediction may look at, one table after another."""
    last: list[int] = stays.last_cuts().tolist()
    places: dict[str, int] = {}
    columns = array("i"), array("i"), array("i"), array("f")
    patients, times, codes, values = columns
    lost: dict[str, int] = {}
    for name in names:
        about = choose("table of events", name, EVENT_TABLES)
        for found in _table(tables, stays, name, about, last):
            if found is None:
                lost[name] = lost.get(name, 0) + 1
                continue
            patient, time, code, value = found
            patients.append(patient)
            times.append(time)
            codes.append(places.setdefault(code, len(places)))
            values.append(value)
    whose, when, what = (np.asarray(column, np.int32) for column in columns[:3])
    order = np.lexsort((when, whose))
    measured = np.asarray(values, np.float32)
    return Events(whose[order], when[order], what[order], measured[order], tuple(places), lost)


Found = tuple[int, int, str, float]


def _table(
    tables: Tables, stays: Stays, name: str, about: EventTable, last: Sequence[int]
) -> Iterator[Found | None]:
    """Patient, minute, code and value of rows until a last minute of each patient.

    Void rows are left out; None stands for a row that has no place.
    """
    column, void = about.void
    owners, ends = stays.patient.tolist(), stays.end.tolist()
    for row in tables.rows(name, about.code):
        code, stay = row[about.code], stays.by_stay.get(row.get("hadm_id", ""))
        if stay is None:
            patient, end = stays.by_subject.get(row.get("subject_id", "")), None
        else:
            patient, end = owners[stay], ends[stay]
        time = _known_at(row, about.times, end)
        if patient is None or time is None or not code:
            yield None
        elif time <= last[patient] and row.get(column) not in void:
            unit = row.get(about.unit)
            told = f"{name} {code} {unit}" if unit else f"{name} {code}"
            yield patient, time, told, _number(row, about.values)


def _known_at(row: Row, times: Sequence[str], end: int | None) -> int | None:
    """Return the minute when an event is known; the end of its stay is in minutes, too."""
    if not times:
        return None if end is None else end + 1
    for name in times:
        if row.get(name):
            return minute(row[name]) + (DAY if name.endswith("date") else 0)
    return None


def _number(row: Row, columns: Iterable[str]) -> float:
    """Return the first cell that is filled, if it is a finite number; else NaN."""
    text = next(filter(None, map(row.get, columns)), "")
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan
