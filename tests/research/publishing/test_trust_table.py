"""The page of what was tried to break leanbayes is made from the tests."""

from research.publishing.paper import DOCS, ROOT
from research.publishing.trust_table import attempts, attempts_table

AREAS = {"Batch axis", "Conversion", "Files", "Half precision", "Input", "Runs", "Serving"}


def test_the_page_lists_every_attempt():
    page = (DOCS / "trust.md").read_text(encoding="utf-8")
    assert attempts_table(ROOT / "tests", "../") in page


def test_every_attempt_has_an_area_and_two_sentences():
    known = list(attempts(ROOT / "tests"))
    assert {area for area, *_ in known} == AREAS
    for _, what, holds, _ in known:
        assert what
        assert holds
        assert not holds.endswith(".")


def test_marks_are_read_without_running_the_tests(tmp_path):
    (tmp_path / "test_a.py").write_text(
        'import pytest\n@pytest.mark.tried("Files", what="<b>", holds="a" "b")\ndef test_x(): ...\n'
    )
    (attempt,) = attempts(tmp_path)
    assert attempt == ("Files", "<b>", "ab", tmp_path / "test_a.py")
