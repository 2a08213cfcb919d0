"""The table of what was tried to break leanbayes, from the tests that show what holds."""

import ast
from collections.abc import Iterator
from pathlib import Path

from research.publishing.paper import ROOT
from research.publishing.tables import markdown_table


def marked(folder: Path, mark: str) -> Iterator[tuple[Path, ast.Call]]:
    """Return the tests of a folder with ``@pytest.mark.MARK(…)``: their files and the call."""
    for file in sorted(folder.rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if f"mark.{mark}(" in text:
            for node in ast.walk(ast.parse(text)):
                for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                    if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(f".{mark}"):
                        yield file, call


def attempts(folder: Path) -> Iterator[tuple[str, str, str, Path]]:
    """Return area, what was tried, what holds and file of ``tried(area, what=…, holds=…)``."""
    for file, call in marked(folder, "tried"):
        words = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        yield ast.literal_eval(call.args[0]), words["what"], words["holds"], file


def attempts_table(folder: Path, up: str) -> str:
    """Return a table for every area, in alphabetical order."""
    by_area: dict[str, list[list[str]]] = {}
    for area, what, holds, file in attempts(folder):
        link = f"[{file.name}]({up}{file.relative_to(ROOT).as_posix()})"
        by_area.setdefault(area, []).append([_sentence(what), _sentence(holds), link])
    header = ["tried", "what holds", "shown by"]
    return "\n\n".join(
        f"## {area}\n\n{markdown_table(header, rows)}" for area, rows in sorted(by_area.items())
    )


def _sentence(text: str) -> str:
    """Begun with a capital, unless a name begins it; tags are text."""
    begun = text[:1].upper() + text[1:] if text.split()[0].rstrip(":,;").isalpha() else text
    return begun.replace("<", "&lt;")
