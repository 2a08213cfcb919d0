"""Every item of the checklist has a test or a page of results, and every marked id exists."""

import pytest

from research.papers import PAPERS
from research.publishing.index_pages import tests_by_id as marked_tests
from research.publishing.paper import DOCS, ROOT

ITEMS = {key: item for paper in PAPERS.values() for key, item in paper.checklist.items()}
MARKED = marked_tests(ROOT / "tests")


def test_there_are_96_items():
    assert len(ITEMS) == 96


@pytest.mark.parametrize("name", PAPERS)
def test_ids_of_a_paper_are_counted(name):
    ids = list(PAPERS[name].checklist)
    letters = ids[0].rstrip("0123456789")
    assert ids == [f"{letters}{i + 1}" for i in range(len(ids))]


def test_every_marked_id_exists():
    assert set(MARKED) <= set(ITEMS)


@pytest.mark.parametrize("key", ITEMS)
def test_an_item_is_shown_by_a_test_or_a_result(key):
    assert key in MARKED or ITEMS[key].page


@pytest.mark.parametrize("key", ITEMS)
def test_an_item_is_a_sentence_and_its_page_exists(key):
    item = ITEMS[key]
    assert item.claim[0].isupper() or item.claim.startswith(("k =", "log α"))
    assert item.claim.endswith(".")
    assert not item.page or (DOCS / "papers" / item.page).is_file()


def test_marks_are_read_from_decorators(tmp_path):
    (tmp_path / "test_a.py").write_text(
        '@pytest.mark.checklist("KT4", "KT13")\n@other\ndef test_a(): ...\n'
        'class TestB:\n    @pytest.mark.checklist("R16")\n    def test_b(self): ...\n'
        "def test_KT1_in_a_name_means_nothing(): ...\n"
    )
    found = {key: sum(files.values()) for key, files in marked_tests(tmp_path).items()}
    assert found == {"KT4": 1, "KT13": 1, "R16": 1}


def test_the_page_is_what_the_marks_say():
    rows = (DOCS / "checklist.md").read_text(encoding="utf-8")
    missing = [
        (key, file.name)
        for key, files in MARKED.items()
        for file in files
        if f"]({file.relative_to(ROOT).as_posix()})".replace("](", "](../") not in rows
    ]
    assert not missing, "run python -m research page"
