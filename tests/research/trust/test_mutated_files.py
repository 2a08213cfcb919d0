"""Changed files of every kind are refused in a sentence or read; a raw error is a finding."""

import random

import pytest

from research.trust.fuzz import KINDS, Subject, attempt, mutated, read_mutations


@pytest.mark.parametrize("kind", KINDS)
def test_changed_files_are_refused_in_a_sentence_or_read(kind):
    found = read_mutations(kind, range(150), seed=1)
    assert found.findings == []
    assert found.mutations == 150
    assert found.accepted < 150  # not every change goes unnoticed


def test_a_raw_error_is_a_finding(tmp_path):
    def careless(path):
        return {}[path.read_bytes()]

    accepted, problem = attempt(Subject(b"abc", "file", careless), "model", 0, 0, tmp_path)
    assert not accepted
    assert problem.startswith("KeyError")


def test_a_seed_gives_the_same_change():
    content = bytes(range(200))
    assert mutated(content, random.Random(3)) == mutated(content, random.Random(3))
    assert len({mutated(content, random.Random(seed)) for seed in range(50)}) > 40
