"""What stands in the blocks of the pages about all papers: the list of them, and the checklist."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from leanbayes.lab.data.problems import choose
from papers.tools.page import Makers
from papers.tools.paper import DOCS, RECIPES, ROOT, Item, Paper
from papers.tools.rows import grid

__all__ = ["ID", "list_makers", "tests_by_id"]

ID = re.compile(r"_(KT|VN|MN|R)(\d{1,2})(?=_)", re.IGNORECASE)
"""An item of the checklist in the name of a test."""
_TEST = re.compile(r"^ *def (test_\w+)", re.MULTILINE)


def list_makers(papers: Mapping[str, Paper], page: Path) -> Makers:
    """What makes the blocks of a page about all papers."""
    up = "../" * len(page.relative_to(DOCS).parents)
    tests = tests_by_id(ROOT / "tests")
    return {
        "papers": lambda _: "\n\n".join(_entry(paper, up) for paper in papers.values()),
        "checklist": lambda name: _checklist(choose("paper", name, papers), tests, up),
    }


def tests_by_id(folder: Path) -> dict[str, dict[Path, int]]:
    """How many tests name an item of the checklist, by item and file."""
    tests: dict[str, dict[Path, int]] = {}
    for file in sorted(folder.rglob("test_*.py")):
        for name in _TEST.findall(file.read_text(encoding="utf-8")):
            for letters, number in ID.findall(name):
                files = tests.setdefault(letters.upper() + number, {})
                files[file] = files.get(file, 0) + 1
    return tests


def _entry(paper: Paper, up: str) -> str:
    """A paper in a few lines: its texts with their names in citations, and where to look."""
    works = [
        f"- **[{work.cited}]** {work.authors} ({work.year}). *{work.title}.* {work.venue}."
        for work in paper.works
    ]
    links = [f"[page]({page.name})" for page in paper.pages[:1]]
    recipes = RECIPES.relative_to(ROOT).as_posix()
    links.append(f"[recipes]({up}{recipes}/{paper.name})")
    links += [f"[results]({up}results/{paper.name})"] * paper.results.is_dir()
    links.append(f"[errata](errata.md#{paper.subject.lower().replace(' ', '-')})")
    links.append(f"[checklist](../checklist.md#{paper.subject.lower().replace(' ', '-')})")
    return "\n".join([f"## {paper.subject}", "", *works, "", " · ".join(links)])


def _checklist(paper: Paper, tests: Mapping[str, Mapping[Path, int]], up: str) -> str:
    lines = (
        [key, item.claim, item.where, ", ".join(_shown_by(item, tests.get(key, {}), up)) or "–"]
        for key, item in paper.checklist.items()
    )
    return grid(["id", "claim", "in the paper", "shown by"], lines)


def _shown_by(item: Item, tests: Mapping[Path, int], up: str) -> Iterator[str]:
    for file, number in tests.items():
        path = file.relative_to(ROOT).as_posix()
        yield f"[{file.name}]({up}{path}), {number} test{'s' * (number > 1)}"
    if item.page:
        yield f"[results](papers/{item.page})"
