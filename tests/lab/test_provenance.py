"""What a result says of the code that made it."""

import re

from leanbayes.lab.provenance import environment_facts, sources_hash


def test_a_result_names_the_content_of_the_source():
    facts = environment_facts()
    assert re.fullmatch("[0-9a-f]{64}", facts["sources"])
    assert facts["revision"] is None or re.fullmatch("[0-9a-f]{40}", facts["tree"])
    assert facts["tree"] != facts["revision"] or facts["tree"] is None


def test_the_hash_of_sources_changes_with_content_and_place(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    first = sources_hash(tmp_path)
    (tmp_path / "notes.txt").write_text("no source")
    assert sources_hash(tmp_path) == first
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    moved = sources_hash(tmp_path)
    (tmp_path / "b.py").write_text("x = 2\n")
    assert len({first, moved, sources_hash(tmp_path)}) == 3
