"""The page of the k-tied papers says what the files of results say."""

import re
from pathlib import Path

import pytest

from leanbayes.lab.papers.blocks import Results
from leanbayes.lab.papers.page import refreshed

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "papers" / "k_tied.md"


def test_its_tables_are_those_of_the_results(tmp_path):
    """Run ``leanbayes page k_tied`` if this fails."""
    text = PAGE.read_text(encoding="utf-8")
    results = Results("k_tied", ROOT / "results" / "k_tied", tmp_path / PAGE.name)
    assert refreshed(text, results.blocks()) == text


def test_its_pictures_are_there():
    for name in re.findall(r"\]\((k_tied/[^)]+\.png)\)", PAGE.read_text(encoding="utf-8")):
        assert (PAGE.parent / name).read_bytes().startswith(b"\x89PNG")
