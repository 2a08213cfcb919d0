"""Stays in hospital: who, from when, how old, until when a record may look, and who died."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from leanbayes.errors import require
from research.papers.rank1.health.tables import Tables

DAY = 24 * 60
OLDEST = 90
"""MIMIC-III moves the births of those above 89 by three centuries; they count as 90."""

ADULT = 18
NEVER = 2**40
"""The end of a stay that has none yet."""

YEAR = 365.25 * DAY

Numbers = npt.NDArray[np.int64]


@lru_cache(maxsize=2**16)
def minute(text: str) -> int:
    """Return a time as minutes from a fixed day on.

    Example:
        >>> minute("2164-10-24 00:01:00") - minute("2164-10-23")
        1441
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"a table has the time {text!r}, and times are written as 2164-10-23 21:09:00; correct "
            "it, or leave its row out"
        ) from error
    return time.toordinal() * DAY + time.hour * 60 + time.minute


@dataclass(frozen=True, eq=False)
class Stays:
    """All stays of a folder, one entry each; ``eligible`` says which are examples.

    Args:
        patient: numbers of patients from 0.
        begin: minute of admission.
        end: minute of discharge or death.
        cut: the last minute that a record may look at.
        died: whether the patient died in this stay.
        age: in years, at most 90.
        male: the recorded gender.
        eligible: whether the stay goes on after ``cut``, of a patient who is old enough.
        by_stay: places in these arrays, by ``hadm_id``.
        by_subject: numbers of patients, by ``subject_id``.
    """

    patient: Numbers
    begin: Numbers
    end: Numbers
    cut: Numbers
    died: npt.NDArray[np.bool_]
    age: npt.NDArray[np.float64]
    male: npt.NDArray[np.bool_]
    eligible: npt.NDArray[np.bool_]
    by_stay: Mapping[str, int]
    by_subject: Mapping[str, int]

    def last_cuts(self) -> Numbers:
        """By patient, the last minute that any of the examples looks at; 0 where there is none."""
        last = np.zeros(len(self.by_subject), np.int64)
        np.maximum.at(last, self.patient[self.eligible], self.cut[self.eligible])
        return last


def read_stays(tables: Tables, *, hours: int = 24, adults: bool = True) -> Stays:
    """Read ADMISSIONS and PATIENTS."""
    people = {
        row["subject_id"]: row for row in tables.rows("PATIENTS", "subject_id", "gender", "dob")
    }
    columns = ("subject_id", "hadm_id", "admittime", "dischtime", "hospital_expire_flag")
    admissions = list(tables.rows("ADMISSIONS", *columns))
    where = tables.folder
    require(bool(admissions), f"ADMISSIONS of {where} has no rows; there is nothing to predict")
    strangers = [row["subject_id"] for row in admissions if row["subject_id"] not in people]
    require(
        not strangers,
        f"PATIENTS of {where} lacks subject {', '.join(strangers[:1])} of ADMISSIONS; take both "
        "tables from the same copy",
    )
    of = [people[row["subject_id"]] for row in admissions]
    subjects = {s: n for n, s in enumerate(dict.fromkeys(row["subject_id"] for row in admissions))}
    begin = np.array([minute(row["admittime"]) for row in admissions])
    ends = ([row.get(name) for name in ("dischtime", "deathtime")] for row in admissions)
    end = np.array([min(map(minute, filter(None, times)), default=NEVER) for times in ends])
    birth = np.array([minute(person["dob"]) for person in of])
    age = np.minimum((begin - birth) / YEAR, OLDEST)
    cut = begin + 60 * hours
    return Stays(
        patient=np.array([subjects[row["subject_id"]] for row in admissions]),
        begin=begin,
        end=end,
        cut=cut,
        died=np.array([row["hospital_expire_flag"] == "1" for row in admissions]),
        age=age,
        male=np.array([person["gender"].upper() == "M" for person in of]),
        eligible=(end > cut) & ((age >= ADULT) | (not adults)),
        by_stay={row["hadm_id"]: place for place, row in enumerate(admissions)},
        by_subject=subjects,
    )
