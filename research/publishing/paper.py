"""A paper as one value: how it is cited, what it printed, and what was checked of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leanbayes.lab.recipe_files import parse_yaml
from research.publishing.paper_blocks import MakeBlocks

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "src" / "leanbayes" / "recipes"
"""The recipes, a folder for each paper."""
DOCS, RESULTS = ROOT / "docs", ROOT / "results"


@dataclass(frozen=True)
class Work:
    """One text of a paper.

    Args:
        cited: its name in citations.
        authors: who wrote it.
        year: when it appeared.
        title: its title.
        venue: where it appeared.
    """

    cited: str
    authors: str
    year: int
    title: str
    venue: str


@dataclass(frozen=True)
class Claim:
    """A row of the table that a paper's page begins with.

    Args:
        says: what the paper says; its numbers and those below are of :mod:`.filled_claims`.
        came: what came out here.
        where: the page behind it, as a Markdown link.
        conditions: what must be the case for it to hold; see :mod:`.verdicts`.
        items: ids of the checklist that it decides.
    """

    says: str
    came: str
    where: str
    conditions: str
    items: tuple[str, ...] = ()


@dataclass(frozen=True)
class Item:
    """A statement or method of a paper that the checklist asks for.

    Args:
        where: its place in the paper.
        claim: what is to be shown, in a sentence.
        page: the page of results about it in ``docs/papers``, if there is one.
    """

    where: str
    claim: str
    page: str = ""


def read_claims(file: Path) -> tuple[Claim, ...]:
    """Read the claims of a paper from a Markdown table."""
    return tuple(
        Claim(says, came, where, conditions, tuple(items.split()))
        for says, came, where, conditions, items in _rows(file)
    )


def read_checklist(file: Path) -> dict[str, Item]:
    """Read the checklist of a paper from a Markdown table: id, place, claim and page."""
    return {
        key: Item(where, claim, "" if page == "–" else page)
        for key, where, claim, page in _rows(file)
    }


def read_published(file: str) -> Any:
    """Read the printed numbers in ``published.yaml`` beside a file."""
    return parse_yaml(Path(file).with_name("published.yaml").read_text(encoding="utf-8"))


def _rows(file: Path) -> list[list[str]]:
    """Return the cells of a table below its header."""
    _, _, *lines = file.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Everything about a paper that no recipe says.

    Args:
        name: of its file here, and of its folders of recipes, results and pages.
        short: its name in citations, such as ``[k-tied, eq. 3]``.
        subject: what it is about, in a few words.
        works: its texts, the first one that is cited by the short name.
        checklist: what is to be shown, by id.
        claims: the first table of its page.
        truncated: metrics of a trained mean field (``full``) and of its truncations, by recipe.
        step_cost: time of a training step relative to the plain network's, by method of the
            benchmark ``step``.
        blocks: what makes the blocks that only its pages have, one for each study.
    """

    name: str
    short: str
    subject: str
    works: tuple[Work, ...]
    checklist: Mapping[str, Item]
    claims: tuple[Claim, ...] = ()
    truncated: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    step_cost: Mapping[str, float] = field(default_factory=dict)
    blocks: tuple[MakeBlocks, ...] = ()

    @classmethod
    def of(cls, file: str, **values: Any) -> Paper:
        """Return the paper of a file ``NAME/paper.py``, with claims and checklist beside it."""
        folder = Path(file).parent
        claims = read_claims(folder / "claims.md")
        checklist = read_checklist(folder / "checklist.md")
        return cls(name=folder.name, claims=claims, checklist=checklist, **values)

    @property
    def recipes(self) -> Path:
        """The folder of its recipes."""
        return RECIPES / self.name

    @property
    def results(self) -> Path:
        """The folder of its archived runs."""
        return RESULTS / self.name

    @property
    def folder(self) -> Path:
        """The folder of the pages behind its page, and of all pictures."""
        return DOCS / "papers" / self.name

    @property
    def pages(self) -> list[Path]:
        """Its page, then those behind it."""
        page = self.folder.with_suffix(".md")
        return [path for path in (page, *sorted(self.folder.glob("*.md"))) if path.is_file()]
