"""How many files of results name the code that made them."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from research.publishing.paper import Paper
from research.publishing.tables import markdown_table


def provenance_table(papers: Iterable[Paper]) -> str:
    """Return files of every paper that record a tree, a revision alone, or neither."""
    lines = []
    for paper in papers:
        found = [set(_recorded(json.loads(file.read_text("utf-8")))) for file in _files(paper)]
        counts = (
            len(found),
            sum("tree" in keys for keys in found),
            sum(keys == {"revision"} for keys in found),
            sum(not keys for keys in found),
        )
        lines.append([f"[{paper.subject}]({paper.name}.md)", *map(str, counts)])
    header = ["paper", "files", "revision and tree", "revision alone", "neither"]
    return markdown_table(header, lines)


def _files(paper: Paper) -> list[Path]:
    return sorted(paper.results.rglob("*.json"))


def _recorded(content: Any) -> Iterator[str]:
    """The keys ``revision`` and ``tree`` that some part of a file has a value for."""
    if isinstance(content, dict):
        yield from (key for key in ("revision", "tree") if content.get(key))
        for value in content.values():
            yield from _recorded(value)
    elif isinstance(content, list):
        for value in content:
            yield from _recorded(value)
