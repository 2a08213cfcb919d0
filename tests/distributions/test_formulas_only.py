"""Distributions state formulas: how they are executed is decided elsewhere."""

import re
from pathlib import Path

import pytest

import leanbayes.distributions

FOLDER = Path(leanbayes.distributions.__file__).parent
EXECUTION = re.compile(
    r"native|fus(ed|ible)|kernel|compil|vectori[sz]|vmap|fold|functorch|dynamo|in_graph|autocast"
    r"|half precision|halves|\.half\(|float16|precision import|onednn|mkl|thread|prediction",
    re.IGNORECASE,
)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_no_line_mentions_execution(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [f"{path.name}:{n} {line}" for n, line in enumerate(lines, 1) if EXECUTION.search(line)]
    assert not found, "\n".join(found)


def test_the_list_of_words_finds_them():
    for line in ("from leanbayes.kernels import x", "if torch.compiler.is_compiling():", "folded"):
        assert EXECUTION.search(line)
