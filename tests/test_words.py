"""Words that people read: module docstrings name the thing that is in the file."""

import ast
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
TO_DO = {
    f"leanbayes/{name}.py"
    for name in (
        "kernels/fused",
        "lab/architectures/base",
        "lab/callbacks",
        "lab/console",
        "lab/data/search",
        "lab/demo/conclusions",
        "lab/from_recipe",
        "lab/incidents",
        "lab/launch",
        "lab/preflight",
        "lab/provenance",
        "lab/recipe_files",
        "lab/report/study",
        "lab/report/summary",
        "lab/robustness",
        "lab/sparse_curves",
        "lab/timing",
        "lab/vae/pictures",
        "lab/vae/settings",
        "lab/weights",
        "layers/forward_pass",
        "prediction/inputs",
    )
}
"""Modules whose docstrings still begin with a question; take one out when it names the thing."""


@pytest.mark.parametrize("name", SOURCES)
def test_a_module_docstring_names_the_thing(name):
    docstring = ast.get_docstring(ast.parse(SOURCES[name].read_text(encoding="utf-8")))
    assert docstring
    asks = bool(QUESTION.match(docstring))
    assert asks <= (name in TO_DO), f"{name} begins with {docstring.split()[0]!r}; name the thing"
