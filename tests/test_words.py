"""Words that people read: module docstrings name the thing, and names that texts use exist."""

import ast
import pkgutil
import re
from pathlib import Path

import pytest

import leanbayes as lb

PACKAGE = Path(lb.__file__).parent
SOURCES = {
    path.relative_to(PACKAGE.parent).as_posix(): path
    for folder in (PACKAGE, PACKAGE.parent / "leanbayes_cli")
    for path in sorted(folder.rglob("*.py"))
}
QUESTION = re.compile(r"(What|Where|How|Which|Whether|Who|When|Why)\b")


@pytest.mark.parametrize("name", SOURCES)
def test_a_module_docstring_names_the_thing(name):
    docstring = ast.get_docstring(ast.parse(SOURCES[name].read_text(encoding="utf-8")))
    assert docstring
    asks = bool(QUESTION.match(docstring))
    assert not asks, f"{name} begins with {docstring.split()[0]!r}; name the thing"


ROOT = Path(__file__).parents[1]
TEXTS = {
    path.relative_to(ROOT).as_posix(): path
    for path in (*PACKAGE.rglob("*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md")
}
REFERENCE = re.compile(r":\w+:`~?(leanbayes[\w.]+)`|`(leanbayes(?!\.safetensors`)(?:\.\w+)+)[`(]")
"""Names in the package; ``leanbayes.safetensors`` is the name of a file."""


@pytest.mark.parametrize("name", TEXTS)
def test_names_that_a_text_refers_to_exist(name):
    for groups in REFERENCE.findall(TEXTS[name].read_text(encoding="utf-8")):
        pkgutil.resolve_name("".join(groups))
