"""Health records: tables of any case and packing, and what may be known when."""

import hashlib
import warnings

import numpy as np
import pytest
from health_files import LABEVENTS, SMALL, TABLES, events_of, told, write_tables

from leanbayes.lab import data
from research.papers.rank1.health import find_tables
from research.papers.rank1.health.events import read_events
from research.papers.rank1.health.stays import minute, read_stays


def known_of(events, patient, until):
    """Names and values of what was known of a patient until a time."""
    rows = (events.patient == patient) & (events.time <= minute(until))
    values = events.value[rows].tolist()
    names = [events.names[code] for code in events.code[rows]]
    return [(n, None if np.isnan(v) else v) for n, v in zip(names, values, strict=True)]


# tables


@pytest.mark.parametrize("lower", [False, True], ids=["upper", "lower"])
@pytest.mark.parametrize("packing", ["", ".gz", ".xz", ".bz2"])
def test_tables_of_any_case_and_packing_give_the_same_records(tmp_path, packing, lower):
    plain = told(write_tables(tmp_path / "plain"))
    other = told(write_tables(tmp_path / "other", packing, lower))
    assert other.train.stored.any()
    for part in ("train", "validation", "test"):
        assert getattr(other, part).stored.equal(getattr(plain, part).stored)
        assert getattr(other, part).y.equal(getattr(plain, part).y)


def test_a_plain_table_is_read_before_a_packed_one(tmp_path):
    folder = write_tables(tmp_path)
    (folder / "admissions.csv.gz").write_bytes(b"what is no table")
    assert find_tables(folder).files["ADMISSIONS"].name == "ADMISSIONS.csv"


def test_a_subset_of_columns_will_do(tmp_path):
    """Without a patient's number, events belong to the patient of their stay."""
    lines = [line.split(",") for line in LABEVENTS.replace('"3,5"', "3.5").splitlines()]
    short = "\n".join(",".join((c[2], c[3], c[4], c[5], c[7])) for c in lines)
    _, events = events_of(write_tables(tmp_path, LABEVENTS=short))
    assert events.lost == {"LABEVENTS": 2}
    whole = [("LABEVENTS 50 mg/dL", 1.0)] * 2 + [("LABEVENTS 50 mg/dL", 5.0)]
    found = known_of(events, 0, "2150-01-02 10:00:00")
    assert [row for row in found if row[0].startswith("LAB")] == whole


@pytest.mark.parametrize("absent", ["ADMISSIONS", "PATIENTS"])
def test_what_records_need_is_named_in_a_sentence(tmp_path, absent):
    folder = write_tables(tmp_path, **{absent: None})
    with pytest.raises(FileNotFoundError, match=rf"lacks {absent}\.csv \(plain, .*; it has [A-Z]"):
        told(folder)


def test_a_folder_without_admissions_is_told_in_a_sentence_by_name(tmp_path, monkeypatch):
    write_tables(tmp_path / "mimic-iii", ADMISSIONS=None)
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"mimic-iii lacks ADMISSIONS\.csv") as error:
        data.load_dataset("mimic-iii")
    assert "\n" not in str(error.value)


def test_a_listed_table_with_a_wrong_checksum_is_named(tmp_path, monkeypatch):
    """And not the folder, which nobody should delete."""
    folder = write_tables(tmp_path / "mimic-iii")
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    assert {state.state for state in data.check("mimic-iii")} == {"unknown"}
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}
    lines = [f"{digest}  mimic-iii/{name}\n" for name, digest in digests.items()]
    (tmp_path / "SHA256SUMS").write_text("".join(lines))
    assert {state.path.name for state in data.check("mimic-iii")} == set(digests)
    assert {state.state for state in data.check("mimic-iii")} == {"right"}
    assert data.load_dataset("mimic-iii", **SMALL).train.stored.any()
    write_tables(folder, LABEVENTS=LABEVENTS + " ")
    with pytest.raises(
        ValueError, match=r"LABEVENTS\.csv has a wrong checksum; put the right file"
    ):
        data.load_dataset("mimic-iii", **SMALL)


def test_one_table_may_be_named_without_a_list(tmp_path):
    folder = write_tables(tmp_path)
    one, listed = (told(folder, tables=given) for given in ("LABEVENTS", ["LABEVENTS"]))
    assert one.train.stored.equal(listed.train.stored)


def test_what_has_no_address_says_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(FileNotFoundError, match="put mimic-iii into a folder, and name that in"):
        data.load_dataset("mimic-iii")


BROKEN = {
    "a column": ({"ADMISSIONS": "SUBJECT_ID,HADM_ID\n10,100\n"}, "has no column 'admittime'"),
    "a time": (
        {"LABEVENTS": LABEVENTS.replace("2150-01-01 12:30:00", "yesterday")},
        "the time 'yesterday', and times are written as",
    ),
    "a short row": ({"LABEVENTS": LABEVENTS + "9,10\n"}, "truncated or damaged"),
    "no rows": ({"ADMISSIONS": TABLES["ADMISSIONS"].splitlines()[0] + "\n"}, "has no rows"),
    "an unknown patient": (
        {"PATIENTS": TABLES["PATIENTS"].replace("2,11,", "2,77,")},
        "PATIENTS of .* lacks subject 11 of ADMISSIONS",
    ),
    "an empty file": ({"LABEVENTS": ""}, "has no column 'itemid'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_tables_are_told_in_a_sentence(tmp_path, case):
    tables, sentence = BROKEN[case]
    with pytest.raises(ValueError, match=sentence) as error:
        told(write_tables(tmp_path, **tables))
    assert "\n" not in str(error.value)


def test_a_truncated_archive_is_told_in_a_sentence(tmp_path):
    folder = write_tables(tmp_path, ".xz")
    whole = (folder / "LABEVENTS.csv.xz").read_bytes()
    (folder / "LABEVENTS.csv.xz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"LABEVENTS\.csv\.xz is truncated or damaged"):
        told(folder)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tables": ["LABEVENT"]}, "did you mean 'LABEVENTS'"),
        ({"tables": ["SERVICES"]}, r"lacks SERVICES\.csv"),
        ({"hours": 0}, "hours is 0; it must be at least 1"),
        ({"hours": 10_000}, "no stay in .* lasts more than 10000 hours"),
        ({"days": 0}, "days is 0"),
        ({"ranges": 0}, "ranges is 0"),
        ({"vocabulary": 2}, "vocabulary is 2"),
        ({"older_than": 0}, "older_than is 0"),
        ({"test": 1.0}, "leave a part empty"),
    ],
)
def test_wrong_options_are_told_in_a_sentence(tmp_path, options, sentence):
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        told(write_tables(tmp_path), **options)


# what may be known when


def test_stays_that_end_before_the_prediction_and_children_are_no_examples(tmp_path):
    tables = find_tables(write_tables(tmp_path))
    stays = read_stays(tables)
    assert stays.eligible.tolist() == [True, True, True, False, True, False]
    assert read_stays(tables, adults=False).eligible.tolist()[-1]
    assert read_stays(tables, hours=9).eligible.tolist() == [True, True, True, True, True, False]
    assert not read_stays(tables, hours=71).eligible[2]  # dies after 70 hours
    assert stays.died.tolist() == [False, False, True, False, False, False]


def test_a_stay_without_an_end_goes_on(tmp_path):
    """Its codes for the bill are not known yet."""
    text = TABLES["ADMISSIONS"].replace("2150-01-09 10:00:00", "")
    stays, events = events_of(write_tables(tmp_path, ADMISSIONS=text), hours=24 * 365)
    assert stays.eligible.tolist() == [True, False, False, False, False, False]
    assert not any("4019" in name for name in events.names)
    assert any("Heparin" in name for name in events.names)


def test_ages_are_at_most_ninety(tmp_path):
    stays = read_stays(find_tables(write_tables(tmp_path)))
    assert stays.age[:4] == pytest.approx([50, 50.08, 70.16, 90], abs=0.01)
    assert stays.male.tolist() == [False, False, True, True, True, False]


def test_nothing_that_is_known_later_is_in_a_record(tmp_path):
    """Codes for the bill come with the discharge, and dates without hours when they are over."""
    _, events = events_of(write_tables(tmp_path))
    first = known_of(events, 0, "2150-01-02 10:00:00")
    assert sorted(name for name, _ in first) == [
        "ADMISSIONS EMERGENCY",
        "LABEVENTS 50 mg/dL",
        "LABEVENTS 50 mg/dL",
        "LABEVENTS 50 mg/dL",
        "PRESCRIPTIONS Aspirin",
    ]
    second = known_of(events, 0, "2150-02-02 10:00:00")
    later = [row for row in second if row not in first]
    assert ("DIAGNOSES_ICD 4019", None) in later
    assert ("PRESCRIPTIONS Heparin", None) in later
    assert ("LABEVENTS 50 mg/dL", 9.0) in later
    assert ("LABEVENTS 51", None) in later  # between two stays, and no number
    assert not any(
        "99591" in name for name in events.names
    )  # of the stay in which the patient died
    assert events.lost == {"LABEVENTS": 1}


def test_rows_that_were_taken_back_are_no_events(tmp_path):
    given = (
        "subject_id,hadm_id,starttime,itemid,statusdescription\n"
        "10,100,2150-01-01 11:00:00,7,Rewritten\n10,100,2150-01-01 11:00:00,8,FinishedRunning\n"
    )
    tables = find_tables(write_tables(tmp_path, INPUTEVENTS_MV=given))
    events = read_events(tables, read_stays(tables), ["INPUTEVENTS_MV"])
    assert events.names == ("INPUTEVENTS_MV 8",)


def test_tables_without_an_event_give_empty_records(tmp_path):
    header = LABEVENTS.splitlines()[0] + "\n"
    dataset = told(write_tables(tmp_path, LABEVENTS=header), tables=["LABEVENTS"])
    assert not dataset.train.stored[:, 1:].any()
    assert dataset.train.stored[:, 0].any()


def test_missing_tables_are_named_once_and_in_the_description(tmp_path):
    folder = write_tables(tmp_path)
    with pytest.warns(UserWarning, match="lacks CHARTEVENTS, ICUSTAYS.*give tables="):
        dataset = told(folder, tables=None)
    assert "nothing from CHARTEVENTS, ICUSTAYS" in dataset.preprocessing
    assert "1 of LABEVENTS" in dataset.preprocessing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told(folder)
