"""Recipes that were trained for less than published, and the hours that the rest would take."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanbayes.lab.recipe import Recipe, check_recipe
from research.publishing.paper import Paper
from research.publishing.results import recipes_by_budget
from research.publishing.tables import markdown_table

TRAINING_EXAMPLES = {
    "mnist": 60_000,
    "fashion-mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "imdb": 25_000,
}
"""Training examples of a data set, validation examples included."""
_NOTHING_CUT = "nothing"
"""Beginning of what such recipes say of their budget: they run as they are."""


@dataclass(frozen=True)
class LeftOut:
    """A recipe whose archived runs are shorter or smaller than its published settings.

    Args:
        recipe: ``PAPER/NAME``.
        ran: budget of the longest run in a few words; empty if there is none.
        published: published budget in the same words.
        smaller: whether the network that ran is another one than the published one.
        hours: hours that one seed of the published settings would take; ``None`` if unknown.
        seeds: number of seeds that ran.
    """

    recipe: str
    ran: str
    published: str
    smaller: bool
    hours: float | None
    seeds: int


def left_out(paper: Paper) -> list[LeftOut]:
    """Return the recipes of a paper that did not run with their published settings."""
    runs = _runs(paper.results)
    files = sorted(paper.recipes.glob("*.yaml"))
    recipes = {file.stem: recipes_by_budget(file)["paper"] for file in files}
    found = (
        _compared(f"{paper.name}/{stem}", published, runs.get(published.name, []))
        for stem, published in recipes.items()
        if not published.cut.startswith(_NOTHING_CUT)
    )
    return [each for each in found if each is not None]


def left_out_table(papers: Iterable[Paper]) -> str:
    """Return a row for every recipe that is left out, below a sum for each paper."""
    by_paper = [(paper.subject, left_out(paper)) for paper in papers]
    sums = [
        f"- {subject}: {len(rows)} recipes, about "
        f"{sum(row.hours or 0.0 for row in rows):,.0f} hours for one seed of each."
        for subject, rows in by_paper
    ]
    header = ["recipe", "run", "published", "hours per seed", "seeds run"]
    lines = [
        [row.recipe, row.ran or "not run", row.published, _hours(row), str(row.seeds)]
        for _, rows in by_paper
        for row in rows
    ]
    return "\n".join((*sums, "", markdown_table(header, lines)))


def _hours(row: LeftOut) -> str:
    if row.hours is None:
        return "not measured"
    shown = f"{row.hours:,.1f}" if row.hours < 10 else f"{row.hours:,.0f}"
    return f"more than {shown}: a larger network" if row.smaller else shown


def _runs(results: Path) -> Mapping[str, list[tuple[Recipe, float]]]:
    """Recipes as they ran with their seconds of training, by name."""
    found: dict[str, list[tuple[Recipe, float]]] = {}
    for file in sorted(results.rglob("*.json")):
        for values, seconds in _trained(json.loads(file.read_text(encoding="utf-8"))):
            recipe = check_recipe(values, str(file))
            found.setdefault(recipe.name, []).append((recipe, seconds))
    return found


def _trained(content: Any) -> Iterator[tuple[Mapping[str, Any], float]]:
    """A trained recipe in a file: of an archived run, or of the first part of a study."""
    if not isinstance(content, Mapping):
        return
    network = (content.get("parts") or {}).get("network") or content
    seconds = network.get("train_seconds", network.get("seconds"))
    if isinstance(network.get("recipe"), Mapping) and isinstance(seconds, float):
        yield network["recipe"], seconds


def _compared(name: str, published: Recipe, ran: Sequence[tuple[Recipe, float]]) -> LeftOut | None:
    wanted = _budget(published)
    if not ran:
        return LeftOut(name, "", wanted, smaller=False, hours=None, seeds=0)
    largest, seconds = max(ran, key=lambda run: _passes(run[0]))
    smaller = largest.architecture != published.architecture
    if not smaller and _passes(largest) >= _passes(published):
        return None
    hours = seconds * _passes(published) / _passes(largest) / 3600
    seeds = len({recipe.seed for recipe, _ in ran})
    return LeftOut(name, _budget(largest), wanted, smaller, hours, seeds)


def _passes(recipe: Recipe) -> int:
    """Return how many training examples a network sees over all epochs."""
    return recipe.training.epochs * _examples(recipe)


def _examples(recipe: Recipe) -> int:
    known = TRAINING_EXAMPLES.get(recipe.data.name, 1)
    return min(known - recipe.data.options.get("validation", 0), recipe.training.limit or known)


def _budget(recipe: Recipe) -> str:
    """Return epochs, training examples if they are limited, and data that are not here."""
    limit, data = recipe.training.limit, recipe.data.name
    of = f" of {limit:,} examples" if limit else ""
    return f"{recipe.training.epochs} epochs{of}" + f" of {data}" * (data not in TRAINING_EXAMPLES)
