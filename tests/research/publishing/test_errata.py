"""Every error of the papers that is cited is explained, once."""

import re

import pytest

from leanbayes.lab.recipe_names import recipe_names
from research.papers import PAPERS
from research.publishing.paper import DOCS, RECIPES, ROOT

PAGE = DOCS / "papers" / "errata.md"
CITED = re.compile(r"(?<![\w.#-])E(\d{1,2})(?![\w.])")
FILES = sorted(
    path
    for folder, pattern in (
        (RECIPES, "*.yaml"),
        (ROOT / "src", "*.py"),
        (ROOT / "papers", "*.py"),
        (DOCS, "*.md"),
        (DOCS, "*.py"),
        (ROOT / "examples", "*.py"),
    )
    for path in folder.rglob(pattern)
    if path != PAGE
)
HEADINGS = ["Id", "Where", "Printed", "Right", "Found by", "Here"]


def rows():
    """Cells of the tables."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def explained():
    return [row[0] for row in rows() if CITED.fullmatch(row[0])]


def citations():
    return {
        (path.relative_to(ROOT).as_posix(), f"E{number}")
        for path in FILES
        for number in CITED.findall(path.read_text(encoding="utf-8"))
    }


def test_every_error_has_one_row():
    assert sorted(explained(), key=lambda name: int(name[1:])) == [f"E{i}" for i in range(1, 48)]


def test_every_cited_error_is_explained():
    cited = citations()
    assert len({name for _, name in cited}) > 10
    assert {place for place in cited if place[1] not in explained()} == set()


def test_tables_are_complete():
    for row in rows():
        assert len(row) == len(HEADINGS), row
        assert all(row)


def test_kinds_of_evidence_are_those_explained():
    kinds = set(re.findall(r"^- \*\*(\w+)\*\*", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    used = {kind for row in rows() if CITED.fullmatch(row[0]) for kind in row[4].split(", ")}
    assert used == kinds


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE.read_text("utf-8")))
def test_links_lead_somewhere(target):
    assert (PAGE.parent / target).resolve().is_file()


def test_files_and_recipes_that_it_names_exist():
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"`leanbayes recipes (\w+)`", text)
    assert named
    assert all(recipe_names(f"{paper}/") for paper in named)


def test_every_part_is_about_a_paper():
    headings = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(headings) <= {paper.subject for paper in PAPERS.values()}
