"""Every id of the checklist that a test uses is explained."""

import re

import pytest

from research.papers import PAPERS
from research.publishing.index_pages import tests_by_id as found_tests
from research.publishing.paper import DOCS, ROOT

ITEMS = {key: item for paper in PAPERS.values() for key, item in paper.checklist.items()}
WRITTEN = re.compile(r"\b(?:KT|VN|MN)\d{1,2}\b")


@pytest.mark.parametrize("name", PAPERS)
def test_ids_of_a_paper_are_counted(name):
    ids = list(PAPERS[name].checklist)
    letters = ids[0].rstrip("0123456789")
    assert ids == [f"{letters}{i + 1}" for i in range(len(ids))]


def test_every_id_in_the_tests_is_explained():
    used = set(found_tests(ITEMS, ROOT / "tests"))
    for file in (ROOT / "tests").rglob("test_*.py"):
        used.update(WRITTEN.findall(file.read_text(encoding="utf-8")))
    assert len(used) > 40
    assert used <= set(ITEMS)


@pytest.mark.parametrize("key", ITEMS)
def test_an_item_is_a_sentence_and_its_page_exists(key):
    item = ITEMS[key]
    assert item.claim[0].isupper() or item.claim.startswith(("k =", "log α"))
    assert item.claim.endswith(".")
    assert not item.page or (DOCS / "papers" / item.page).is_file()


def test_names_of_tests_are_read_in_either_case(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_KT4_KT13_a():\n def test_r16_b(): ...\n")
    assert {key: sum(files.values()) for key, files in found_tests(ITEMS, tmp_path).items()} == {
        "KT4": 1,
        "KT13": 1,
        "R16": 1,
    }
