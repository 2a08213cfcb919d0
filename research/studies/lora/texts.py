"""What the study reads: film reviews, docstrings of Python's library, reviews without order."""

import ast
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from leanbayes.errors import require
from research.data import fetch

Labeled = Sequence[tuple[str, int]]
_DOCSTRING = 400
"""How many characters a docstring has at least to be a text."""


@dataclass(frozen=True)
class Sizes:
    """How many texts there are.

    Args:
        train: reviews to learn from.
        test: reviews to judge by.
        foreign: texts of every foreign kind.
    """

    train: int = 2000
    test: int = 800
    foreign: int = 200


@dataclass(frozen=True)
class Texts:
    """Reviews with labels (1 is positive), and texts that are none.

    Args:
        train: reviews to learn from.
        test: reviews to judge by.
        foreign: texts of other kinds, by the name of the kind.
    """

    train: Labeled
    test: Labeled
    foreign: dict[str, Sequence[str]] = field(default_factory=dict)


def read_texts(sizes: Sizes) -> Texts:
    """Return reviews in an order that a seed makes, the same for every network; and foreign texts.

    Reviews without order are made of test reviews that nothing else uses.
    """
    copy = fetch("imdb")
    require(copy is not None, "imdb has no files; look at leanbayes data list")
    assert copy is not None
    content = copy.form.read(copy.paths)
    shuffled = {split: random.Random(0).sample(rows, len(rows)) for split, rows in content.items()}
    train, test = shuffled["train"], shuffled["test"]
    unused = [text for text, _ in test[sizes.test : sizes.test + sizes.foreign]]
    return Texts(
        train[: sizes.train],
        test[: sizes.test],
        {"docstrings": docstrings(sizes.foreign), "shuffled": without_order(unused)},
    )


def without_order(texts: Sequence[str]) -> list[str]:
    """Return the words of every text in an order that a seed makes.

    Example:
        >>> sorted(without_order(["a good film"])[0].split())
        ['a', 'film', 'good']
    """
    chance = random.Random(1)
    split = [text.split() for text in texts]
    return [" ".join(chance.sample(words, len(words))) for words in split]


def docstrings(count: int) -> list[str]:
    """Return long docstrings of Python's own library, which is read and not imported.

    They depend on the version of Python, which the result names.

    Example:
        >>> len(docstrings(3)), min(map(len, docstrings(3))) >= 400
        (3, True)
    """
    found = _all_docstrings()
    require(
        len(found) >= count,
        f"Python's library has {len(found)} long docstrings here, and {count} are asked for; "
        "ask for fewer OOD texts",
    )
    return random.Random(2).sample(found, count)


@cache
def _all_docstrings() -> tuple[str, ...]:
    return tuple(sorted(set(_long_docstrings())))


def _long_docstrings() -> Iterator[str]:
    for name in sorted(sys.stdlib_module_names):
        spec = None if name.startswith("_") else find_spec(name)
        if spec is None or not spec.origin or not spec.origin.endswith(".py"):
            continue
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if len(text) >= _DOCSTRING:
                    yield text
