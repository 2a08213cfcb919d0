"""Health records: bags of days, splits by patient, and the open demo from tables to a report."""

import os

import numpy as np
import pytest
import torch
from health_files import LABEVENTS, events_of, told, write_tables

from leanbayes.lab import data
from leanbayes.lab.recipe_files import read_recipe
from leanbayes.lab.report import write_report
from leanbayes.lab.train import train
from research.papers.rank1.health import find_tables
from research.papers.rank1.health.bags import RecordShape, bag, learn_vocabulary
from research.papers.rank1.health.events import read_events
from research.papers.rank1.health.groups import random_groups
from research.papers.rank1.health.stays import read_stays

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


def test_the_vocabulary_is_learned_from_training_patients_alone(tmp_path):
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


@pytest.mark.checklist("R19")
@demo_only
def test_the_demo_has_its_published_patients_and_deaths(demo):
    copy = data.fetch("mimic-iii-demo")
    stays = read_stays(find_tables(copy.paths[0]), hours=1)
    assert (len(stays.by_subject), len(stays.died), stays.died.sum()) == (100, 129, 40)
    assert "14262 of LABEVENTS" in demo.preprocessing
    assert "nothing from CHARTEVENTS, INPUTEVENTS_CV" in demo.preprocessing


@pytest.mark.checklist("R19")
@demo_only
def test_the_demo_becomes_records(demo):
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


@pytest.mark.checklist("R19")
@demo_only
@pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")
@pytest.mark.parametrize("row", ["gaussian", "cauchy", "ensemble", "mc-dropout"])
def test_the_demo_trains_and_is_judged(demo, row, tmp_path):
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
