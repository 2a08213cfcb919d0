"""Small tables in the schema of MIMIC-III, and what is made of them."""

import bz2
import gzip
import lzma
from pathlib import Path

from research.papers.rank1.health import find_tables
from research.papers.rank1.health.events import read_events
from research.papers.rank1.health.mimic import mimic
from research.papers.rank1.health.stays import read_stays

PACKERS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}

PATIENTS = """ROW_ID,SUBJECT_ID,GENDER,DOB,DOD
1,10,F,2100-01-01 00:00:00,
2,11,M,2080-01-01 00:00:00,2150-03-04 00:00:00
3,12,M,1850-06-01 00:00:00,
4,13,F,2149-12-31 00:00:00,
"""

ADMISSIONS = """SUBJECT_ID,HADM_ID,ADMITTIME,DISCHTIME,DEATHTIME,ADMISSION_TYPE,HOSPITAL_EXPIRE_FLAG
10,100,2150-01-01 10:00:00,2150-01-09 10:00:00,,EMERGENCY,0
10,101,2150-02-01 10:00:00,2150-02-05 10:00:00,,ELECTIVE,0
11,102,2150-03-01 10:00:00,2150-03-04 09:00:00,2150-03-04 08:00:00,EMERGENCY,1
12,103,2150-04-01 10:00:00,2150-04-01 20:00:00,,EMERGENCY,0
12,104,2150-05-01 10:00:00,2150-05-03 20:00:00,,URGENT,0
13,105,2150-01-01 10:00:00,2150-01-04 10:00:00,,NEWBORN,0
"""

LABEVENTS = """ROW_ID,SUBJECT_ID,HADM_ID,ITEMID,CHARTTIME,VALUE,VALUENUM,VALUEUOM,FLAG
1,10,100,50,2150-01-01 12:00:00,1.0,1.0,mg/dL,
2,10,100,50,2150-01-01 12:30:00,1.0,1.0,mg/dL,
3,10,100,50,2150-01-02 09:59:00,5.0,5.0,mg/dL,abnormal
4,10,100,50,2150-01-02 10:01:00,9.0,9.0,mg/dL,
5,10,,51,2150-01-15 00:00:00,NEG,,,
6,11,102,50,2150-03-01 11:00:00,2.0,2.0,mg/dL,
7,99,999,50,2150-03-01 11:00:00,2.0,2.0,mg/dL,
8,12,104,50,2150-05-01 12:00:00,"3,5",3.0,mg/dL,
"""

PRESCRIPTIONS = """ROW_ID,SUBJECT_ID,HADM_ID,STARTDATE,ENDDATE,DRUG
1,10,100,2150-01-01 00:00:00,2150-01-03 00:00:00,Aspirin
2,10,100,2150-01-02 00:00:00,2150-01-03 00:00:00,Heparin
"""

DIAGNOSES_ICD = """ROW_ID,SUBJECT_ID,HADM_ID,SEQ_NUM,ICD9_CODE
1,10,100,1,4019
2,11,102,1,99591
"""

TABLES = {
    "ADMISSIONS": ADMISSIONS,
    "PATIENTS": PATIENTS,
    "LABEVENTS": LABEVENTS,
    "PRESCRIPTIONS": PRESCRIPTIONS,
    "DIAGNOSES_ICD": DIAGNOSES_ICD,
}


def write_tables(folder: Path, packing: str = "", lower: bool = False, **tables: str | None):
    """Write the tables, with others instead of some; None leaves one out."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {**TABLES, **tables}.items():
        if text is None:
            continue
        header, _, rest = text.partition("\n")
        spelled = f"{header.lower()}\n{rest}" if lower else text
        file = f"{name.lower() if lower else name}.csv{packing}"
        (folder / file).write_bytes(PACKERS[packing](spelled.encode()))
    return folder


HALF = {"test": 0.34, "validation": 0.34, "tables": sorted(set(TABLES) - {"PATIENTS"})}
SMALL = {"days": 4, "codes": 5, "measurements": 3, "vocabulary": 20, "measured": 2, **HALF}


def told(folder, **options):
    """The data set of a folder of tables."""
    return mimic(find_tables(folder), **{**SMALL, **options})


def events_of(folder, **options):
    tables = find_tables(folder)
    stays = read_stays(tables, **options)
    return stays, read_events(tables, stays, HALF["tables"])
