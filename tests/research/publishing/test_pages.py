"""The pages of the papers say what the files of results say, conclusions first."""

import re

import pytest

from research.__main__ import LISTS
from research.papers import PAPERS
from research.publishing.blocks import Blocks
from research.publishing.index_pages import list_makers
from research.publishing.pages import refreshed
from research.publishing.paper import DOCS, Claim

pytest.importorskip("matplotlib")

BLOCKS = {name: Blocks(paper) for name, paper in PAPERS.items()}
PAGES = [(name, page) for name, paper in PAPERS.items() for page in paper.pages]
every_page = pytest.mark.parametrize(
    ("name", "page"), PAGES, ids=lambda value: value if isinstance(value, str) else value.stem
)


@every_page
def test_its_tables_are_those_of_the_results(name, page):
    """Run ``make pages`` if this fails."""
    text = page.read_text(encoding="utf-8")
    assert refreshed(text, BLOCKS[name].makers(page)) == text


@pytest.mark.parametrize("page", LISTS, ids=lambda page: page.stem)
def test_lists_are_those_of_the_papers_and_tests(page):
    """Run ``make pages`` if this fails."""
    text = page.read_text(encoding="utf-8")
    assert refreshed(text, list_makers(PAPERS.values(), page)) == text


@every_page
def test_its_pictures_are_there(name, page):
    for picture in re.findall(r"\]\(([^)]+\.png)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / picture).read_bytes().startswith(b"\x89PNG")


def test_every_picture_is_shown():
    shown = {
        (page.parent / picture).resolve()
        for _, page in PAGES
        for picture in re.findall(r"\]\(([^)]+\.png)\)", page.read_text(encoding="utf-8"))
    }
    assert set((DOCS / "papers").rglob("*.png")) == shown


@every_page
def test_errors_are_told_in_words(name, page):
    prose = re.sub(r"<!--.*?-->|\]\([^)]*\)", "", page.read_text(encoding="utf-8"))
    assert re.findall(r"\bE\d{1,2}\b", prose) == []


def test_the_first_page_is_short_and_begins_with_the_claims():
    page = PAPERS["k_tied"].pages[0].read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert lines[0] == "| what the paper says | verdict | result | where to look |"
    assert len([line for line in lines if not line.startswith("| ---")]) <= 33
    assert 5 <= len(PAPERS["k_tied"].claims) <= 12


@pytest.mark.parametrize("claim", PAPERS["k_tied"].claims, ids=lambda claim: claim.says[:20])
def test_numbers_of_a_claim_are_made_from_results(claim: Claim):
    """What is written by hand is a rank, a count of steps or epochs, or a setting."""
    written = re.sub(r"\{[^}]*\}", "", f"{claim.says} {claim.came}")
    written = re.sub(r"k = \d( and \d)?|rank \d|steps? \d+( and \d+)?|\d+ epochs", "", written)
    assert re.findall(r"\d+", written) == []
