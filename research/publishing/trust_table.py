"""The table of what was tried to break leanbayes, from the tests that show what holds."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from research.publishing.paper import ROOT
from research.publishing.tables import markdown_table


class Attempt(NamedTuple):
    """What a test tries and what holds.

    Attributes:
        area: the part of leanbayes.
        what: what was tried.
        holds: what happens.
        file: where the test is.
        test: its name.
    """

    area: str
    what: str
    holds: str
    file: Path
    test: str


def attempts(folder: Path) -> Iterator[Attempt]:
    """Every test marked ``@pytest.mark.tried(area, what=…, holds=…)`` in a folder."""
    for file in sorted(folder.rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if "mark.tried(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                marks = (d for d in node.decorator_list if isinstance(d, ast.Call))
                for mark in marks:
                    if isinstance(mark.func, ast.Attribute) and mark.func.attr == "tried":
                        yield _attempt(mark, file, node.name)


def _attempt(mark: ast.Call, file: Path, test: str) -> Attempt:
    words = {word.arg: ast.literal_eval(word.value) for word in mark.keywords}
    return Attempt(ast.literal_eval(mark.args[0]), words["what"], words["holds"], file, test)


def attempts_table(folder: Path, up: str) -> str:
    """Return a table for every area, in alphabetical order."""
    by_area: dict[str, list[Attempt]] = {}
    for attempt in attempts(folder):
        by_area.setdefault(attempt.area, []).append(attempt)
    header = ["tried", "what holds", "shown by"]
    return "\n\n".join(
        f"## {area}\n\n{markdown_table(header, (_row(attempt, up) for attempt in rows))}"
        for area, rows in sorted(by_area.items())
    )


def _row(attempt: Attempt, up: str) -> list[str]:
    path = attempt.file.relative_to(ROOT).as_posix()
    words = (_sentence(text) for text in (attempt.what, attempt.holds))
    return [*words, f"[{attempt.file.name}]({up}{path})"]


def _sentence(text: str) -> str:
    """Begun with a capital, unless a name begins it; tags are text."""
    begun = text[:1].upper() + text[1:] if text.split()[0].rstrip(":,;").isalpha() else text
    return begun.replace("<", "&lt;")
