"""Health records: tables of any case and packing, what may be known, bags, splits, the demo."""

import hashlib
import os
import warnings

import numpy as np
import pytest
import torch
from health_files import LABEVENTS, TABLES, write_tables

from leanbayes.lab import data
from leanbayes.lab.data.health import find_tables
from leanbayes.lab.data.health.bags import RecordShape, bag, learn_vocabulary
from leanbayes.lab.data.health.events import read_events
from leanbayes.lab.data.health.mimic import mimic
from leanbayes.lab.data.health.stays import minute, read_stays
from leanbayes.lab.data.splits import random_groups
from leanbayes.lab.recipe_files import read_recipe
from leanbayes.lab.report import write_report
from leanbayes.lab.train import train

HALF = {"test": 0.34, "validation": 0.34, "tables": sorted(set(TABLES) - {"PATIENTS"})}
SMALL = {"days": 4, "codes": 5, "measurements": 3, "vocabulary": 20, "measured": 2, **HALF}


def told(folder, **options):
    """The data set of a folder of tables."""
    return mimic(find_tables(folder), **{**SMALL, **options})


def events_of(folder, **options):
    tables = find_tables(folder)
    stays = read_stays(tables, **options)
    return stays, read_events(tables, stays, HALF["tables"])


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


# bags


def bagged(folder, learn_from=None, **options):
    stays, events = events_of(folder)
    examples = stays.eligible.nonzero()[0]
    chosen = np.ones(len(events), bool) if learn_from is None else events.patient == learn_from
    words = learn_vocabulary(events, chosen, 20, 2, 2)
    shape = RecordShape(**{"days": 8, "codes": 5, "measurements": 3, **options})
    return events, words, bag(stays, examples, events, words, shape)


def test_a_bag_holds_each_entry_of_a_day_once(tmp_path):
    events, words, found = bagged(write_tables(tmp_path))
    record = found.entries[0]
    assert record[0, :2].tolist() == [0, 50]
    names = {int(words.code[i]): name for i, name in enumerate(events.names)}
    assert {names[i] for i in record[1, :5] if i} == {
        "ADMISSIONS EMERGENCY",
        "PRESCRIPTIONS Aspirin",
    }
    median = np.median([1, 1, 5, 9, 2, 3])
    assert words.edges.tolist() == [[median]]
    assert sorted(record[1, 5:].tolist()) == [0, 1, 2]  # 1.0 below, twice, and 5.0 above
    assert not record[2:].any()
    assert found.left_out == 0
    assert found.kept == np.count_nonzero(found.entries[:, 1:])


def test_days_come_in_their_order_and_the_last_ones_are_kept(tmp_path):
    folder = write_tables(tmp_path)
    _, _, all_days = bagged(folder)
    _, _, last_days = bagged(folder, days=2)
    record, short = all_days.entries[1], last_days.entries[1]
    used = np.count_nonzero(record[1:].any(1))
    assert used == 5
    assert (short[1:3] == record[1 + used - 2 : 1 + used]).all()
    assert last_days.left_out > 0
    total = all_days.kept + all_days.left_out
    assert last_days.kept + last_days.left_out == total


def test_a_full_bag_keeps_the_newest(tmp_path):
    folder = write_tables(tmp_path)
    _, _, roomy = bagged(folder)
    _, _, tight = bagged(folder, codes=1, measurements=1)
    assert tight.entries[0, 1, 1] == roomy.entries[0, 1, 5] == 2  # 5.0, noted last


def test_old_events_share_a_bag(tmp_path):
    _, _, found = bagged(write_tables(tmp_path), older_than=3)
    assert np.count_nonzero(found.entries[1, 1:].any(1)) == 2  # today, and all that is older


def test_the_vocabulary_is_learnt_from_training_patients_alone(tmp_path):
    events, words, _ = bagged(write_tables(tmp_path), learn_from=1)
    known = {name for i, name in enumerate(events.names) if words.code[i] > 1}
    assert known == {"ADMISSIONS EMERGENCY"}
    assert words.edges.tolist() == [[2.0]]  # the one value of that patient
    assert words.sizes == (3, 3)


def test_bags_by_brute_force(tmp_path, request):
    """Many random events, against a dictionary of sets."""
    rng = np.random.default_rng(request.config.getoption("--seed"))
    rows = []
    for number in range(400):
        subject = rng.choice([10, 11, 12])
        later = np.timedelta64(int(rng.integers(0, 250_000)), "m")
        time = str(np.datetime64("2149-12-25T00:00") + later).replace("T", " ")
        value = rng.integers(0, 50)
        item = rng.integers(0, 6)
        rows.append(f"{number},{subject},,{item},{time}:00,{value},{value},u,")
    text = "\n".join([LABEVENTS.splitlines()[0], *rows]) + "\n"
    tables = find_tables(write_tables(tmp_path, LABEVENTS=text))
    stays = read_stays(tables)
    events = read_events(tables, stays, ["LABEVENTS"])
    words = learn_vocabulary(events, np.ones(len(events), bool), 50, 3, 5)
    index, measured = words.indices(events)
    examples = stays.eligible.nonzero()[0]
    found = bag(stays, examples, events, words, RecordShape(200, 60, 60))
    for record, stay in zip(found.entries, examples, strict=True):
        expected = {}
        for place in range(len(events)):
            age = stays.cut[stay] - events.time[place]
            if events.patient[place] == stays.patient[stay] and age >= 0:
                day = expected.setdefault(-(max(age - 1, 0) // 1440), (set(), set()))
                day[int(measured[place])].add(int(index[place]))
        for row, day in zip(record[1:], sorted(expected), strict=False):
            codes, values = expected[day]
            assert set(row[:60].tolist()) - {0} == codes
            assert set(row[60:].tolist()) - {0} == values
            assert np.count_nonzero(row) == len(codes) + len(values)
        assert not record[1 + len(expected) :].any()
    assert found.left_out == 0


# splits


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_groups_never_mix_between_parts(seed):
    groups = np.random.RandomState(seed).randint(0, 40, 300)
    parts = random_groups(groups, 0.2, 0.1, seed)
    assert sorted(np.concatenate(parts)) == list(range(300))
    sets = [set(groups[part]) for part in parts]
    assert [len(s) for s in sets] == [28, 4, 8]
    assert len(set.union(*sets)) == sum(map(len, sets))


def test_all_stays_of_a_patient_are_in_one_part(tmp_path):
    """Patient 10 has two stays, told apart by the age of 50."""
    parts = set()
    for seed in range(6):
        dataset = told(write_tables(tmp_path), seed=seed)
        held = [int((p.stored[:, 0, 1] == 50).sum()) for p in (dataset.train, dataset.test)]
        held.append(0 if dataset.validation is None else 2 - sum(held))
        assert sorted(held) == [0, 0, 2]
        parts.add(held.index(2))
    assert len(parts) > 1


def test_missing_tables_are_named_once_and_in_the_description(tmp_path):
    folder = write_tables(tmp_path)
    with pytest.warns(UserWarning, match="lacks CHARTEVENTS, ICUSTAYS.*give tables="):
        dataset = told(folder, tables=None)
    assert "nothing from CHARTEVENTS, ICUSTAYS" in dataset.preprocessing
    assert "1 of LABEVENTS" in dataset.preprocessing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told(folder)


# the open demo

demo_only = pytest.mark.skipif(
    "LEANBAYES_DATA" not in os.environ, reason="LEANBAYES_DATA names no folder with real data"
)


@pytest.fixture(scope="module")
def demo():
    if "mimic-iii-demo" not in {e.name for e in data.listing() if e.where is not None}:
        pytest.skip("mimic-iii-demo is not on this machine")
    with pytest.warns(UserWarning, match="lacks CHARTEVENTS"):
        return data.load_dataset("mimic-iii-demo", download=False)


@demo_only
def test_R19_the_demo_has_its_published_patients_and_deaths(demo):
    copy = data.fetch("mimic-iii-demo")
    stays = read_stays(find_tables(copy.paths[0]), hours=1)
    assert (len(stays.by_subject), len(stays.died), stays.died.sum()) == (100, 129, 40)
    assert "14262 of LABEVENTS" in demo.preprocessing
    assert "nothing from CHARTEVENTS, INPUTEVENTS_CV" in demo.preprocessing


@demo_only
def test_R19_the_demo_becomes_records(demo):
    parts = (demo.train, demo.validation, demo.test)
    stored = torch.cat([part.stored for part in parts])
    assert demo.input_shape == (31, 64)
    assert demo.classes == ("survived", "died")
    assert {int(label) for part in parts for label in part.y} == {0, 1}
    assert (stored[:, 1].count_nonzero(-1) > 0).all()  # no record is empty
    assert set(stored[:, 0, 0].tolist()) == {0, 100}
    assert 18 <= int(stored[:, 0, 1].min()) < int(stored[:, 0, 1].max()) == 90
    assert not stored[:, 0, 2:].any()
    assert int(stored[:, 1:, :32].max()) < 10_000
    assert 495 < int(stored[:, 1:, 32:].max()) <= 500  # 100 measurements in 5 ranges
    counts = demo.train.stored[:, 1:, 32:].flatten()
    ranges = (counts[counts > 0] - 1) % 5
    assert (ranges.bincount() > 0.1 * len(ranges)).all()  # about equally frequent


@demo_only
@pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")
@pytest.mark.parametrize("row", ["gaussian", "cauchy", "ensemble", "mc-dropout"])
def test_R19_the_demo_trains_and_is_judged(demo, row, tmp_path):
    """The published rows, with few units and a few tables."""
    sizes = {"days": 5, "codes": 8, "measurements": 8, "vocabulary": 300}
    options = {**sizes, "tables": ["LABEVENTS", "SERVICES"]}
    small = {**sizes, "rnn_dim": 8, "hidden_layer_dim": 8, "code_dimension": 4, "context": 2}
    recipe = read_recipe(
        f"rank1/ehr-lstm-{row}",
        settings={
            "data": {"name": "mimic-iii-demo", "options": options},
            "architecture.options": {**small, "dropout": 0.2 if row == "mc-dropout" else 0.0},
            "training.epochs": 2,
            "evaluation.samples": 3,
        },
    )
    result = train(recipe, tmp_path, progress=False)
    assert {"nll", "ece", "auroc", "auc_pr"} <= result["metrics"].keys()
    assert 0 < result["metrics"]["nll"]["value"] < 5
    assert result["kept"]["epoch"] in (0, 1)
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert "nothing from ADMISSIONS, CHARTEVENTS" in page
    assert "average precision" in page
