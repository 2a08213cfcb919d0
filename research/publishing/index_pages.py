"""Blocks of the pages about all papers and all tests: list, checklist, attempts."""

import ast
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from research.publishing.left_out import left_out_table
from research.publishing.pages import Makers
from research.publishing.paper import DOCS, RECIPES, ROOT, Item, Paper
from research.publishing.provenance_table import provenance_table
from research.publishing.tables import markdown_table
from research.publishing.trust_table import attempts_table, marked
from research.publishing.what_holds import WhatHolds
from research.trust.page import trust_makers


def list_makers(papers: Iterable[Paper], page: Path) -> Makers:
    """Return what makes the blocks of a page about all papers."""
    up = "../" * len(page.relative_to(DOCS).parents)
    tests = tests_by_id(ROOT / "tests")
    papers = list(papers)
    holds = WhatHolds(papers)
    return {
        "papers": lambda _: "\n\n".join(_entry(paper, up) for paper in papers),
        "checklist": lambda _: "\n\n".join(
            _checklist(paper, holds.checked(paper, tests), tests, up) for paper in papers
        ),
        "what-holds": lambda _: holds.table(),
        "verdicts": lambda _: holds.summary(),
        "left-out": lambda _: left_out_table(papers),
        "provenance": lambda _: provenance_table(papers),
        "attempts": lambda folder: attempts_table(ROOT / folder, up),
        **trust_makers(),
    }


def tests_by_id(folder: Path) -> dict[str, dict[Path, int]]:
    """Count the tests marked ``@pytest.mark.checklist(*ids)``, by id and file."""
    tests: dict[str, dict[Path, int]] = {}
    for file, call in marked(folder, "checklist"):
        for key in map(ast.literal_eval, call.args):
            files = tests.setdefault(key, {})
            files[file] = files.get(file, 0) + 1
    return tests


def _entry(paper: Paper, up: str) -> str:
    """Return a paper in a few lines: its texts with their names in citations, and where to look."""
    works = [
        f"- **[{work.cited}]** {work.authors} ({work.year}). *{work.title}.* {work.venue}."
        for work in paper.works
    ]
    anchor = paper.subject.lower().replace(" ", "-")
    has_errata = f"## {paper.subject}\n" in (DOCS / "papers" / "errata.md").read_text("utf-8")
    links = [
        *[f"[page]({page.relative_to(DOCS / 'papers').as_posix()})" for page in paper.pages[:1]],
        f"[recipes]({up}{RECIPES.relative_to(ROOT).as_posix()}/{paper.name})",
        *[f"[results]({up}results/{paper.name})"] * paper.results.is_dir(),
        *[f"[errata](errata.md#{anchor})"] * has_errata,
        f"[checklist](../checklist.md#{anchor})",
    ]
    return "\n".join([f"## {paper.subject}", "", *works, "", " · ".join(links)])


def _checklist(
    paper: Paper, verdicts: Mapping[str, str], tests: Mapping[str, Mapping[Path, int]], up: str
) -> str:
    lines = (
        [
            *(key, item.claim, item.where, verdicts[key]),
            ", ".join(_shown_by(item, tests.get(key, {}), up)) or "–",
        ]
        for key, item in paper.checklist.items()
    )
    header = ["id", "claim", "in the paper", "verdict", "shown by"]
    return f"## {paper.subject}\n\n{markdown_table(header, lines)}"


def _shown_by(item: Item, tests: Mapping[Path, int], up: str) -> Iterator[str]:
    for file, number in tests.items():
        path = file.relative_to(ROOT).as_posix()
        yield f"[{file.name}]({up}{path}), {number} test{'s' * (number > 1)}"
    if item.page:
        yield f"[results]({posixpath.normpath(f'papers/{item.page}')})"
