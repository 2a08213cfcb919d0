"""A paper is one file: its table, its entry in the list and its checklist come by themselves."""

import sys

from research import papers
from research.publishing import paper as places
from research.publishing.index_pages import list_makers
from research.publishing.results import table

FILE = """
from research.publishing.paper import Item, Paper, Work

PAPER = Paper(
    name="new",
    short="new",
    subject="New idea",
    works=(Work("new", "A. Nobody", 2030, "A New Idea", "Nowhere"),),
    checklist={"NI1": Item("eq. 1", "It works.")},
)
"""
RECIPE = """
name: digits-new
data: {name: digits}
architecture: {name: mlp}
training: {epochs: 1}
published: {paper: new, row: "MLP on digits, new", values: {nll: 0.1}}
"""


def test_a_paper_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "paper.py").write_text(FILE)
    (tmp_path / "recipes" / "new").mkdir(parents=True)
    (tmp_path / "recipes" / "new" / "digits-new.yaml").write_text(RECIPE)
    monkeypatch.setattr(papers, "__path__", [*papers.__path__, str(tmp_path)])
    try:
        added = papers.find_papers()
    finally:
        sys.modules.pop("research.papers.new.paper", None)
    assert set(added) == {*papers.PAPERS, "new"}
    makers = list_makers(added.values(), places.DOCS / "checklist.md")
    assert "| NI1 | It works. | eq. 1 | not here | – |" in makers["checklist"]("all")
    assert "**[new]** A. Nobody (2030). *A New Idea.* Nowhere." in makers["papers"]("all")
    monkeypatch.setattr(places, "RECIPES", tmp_path / "recipes")
    (row,) = table(added["new"], [])
    assert (row.title, row.run, row.cells["nll"].published) == (
        "MLP on digits, new",
        "not run",
        0.1,
    )
