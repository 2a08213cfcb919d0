"""Blocks of pages that show the toy of four classes, the attacks and the policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from leanbayes.errors import choose
from research.papers.variance.attacks import attacks_table, draw_attacks
from research.papers.variance.four_classes import (
    DUPLICATED,
    ORTHOGONAL,
    draw_activations,
    kind_of,
    seeds_table,
    spreads_of,
)
from research.papers.variance.policies import (
    commands_of_policies,
    curves_of_policies,
    read_policy,
    table_of_policies,
)
from research.publishing.cells import Cell, averaged
from research.publishing.paper_blocks import OwnBlocks, Picture
from research.publishing.study_file import read_study

_GRADIENTS: Mapping[str, Literal["averaged", "of_average"]] = {
    "averaged": "averaged",
    "of_average": "of_average",
}


def study_blocks(results: Path) -> OwnBlocks:
    """Return what makes the blocks ``toy``, ``attacks`` and ``policies`` and their pictures.

    ``policies`` and ``policy-curves`` name studies, ``CartPole-v0-variance, …``. A claim names a
    mean return by ``policy/NAME last_100``, and a share of successes after the last step by
    ``attack/NETWORK GRADIENT``. Of the toy it names ``toy/accuracy KIND``, and by
    ``toy/kind orthogonal-codes`` how many seeds found a solution of a kind.
    """
    of = _Studies(results)
    return OwnBlocks(
        tables={
            "toy": lambda _: seeds_table(of.study("toy")),
            "attacks": lambda _: attacks_table(of.study("attack")),
            "policies": of.policies_table,
        },
        pictures={
            "toy-clouds": of.clouds,
            "attack-curves": of.attack_curves,
            "policy-curves": of.policy_curves,
        },
        cells={"policy": of.policy_cell, "attack": of.attack_cell, "toy": of.toy_cell},
    )


class _Studies:
    """The studies in a folder of results."""

    def __init__(self, results: Path) -> None:
        self.results = results

    def study(self, name: str) -> Mapping[str, Any]:
        return read_study(self.results / "studies" / f"{name}.json", f"papers {name}")

    def policies(self, names: str) -> list[Mapping[str, Any]]:
        return [self._policy(name) for name in names.split(", ")]

    def policies_table(self, names: str) -> str:
        studies = self.policies(names)
        return "\n\n".join((table_of_policies(studies), commands_of_policies(studies)))

    def _policy(self, name: str) -> Mapping[str, Any]:
        return read_policy(self.results / "policies" / f"{name}.json")

    def clouds(self, argument: str) -> Iterator[Picture]:
        """``toy | caption``: activations of one seed of each kind."""
        _, _, caption = argument.partition(" | ")
        yield Picture("toy", caption, draw_activations(self.study("toy")))

    def attack_curves(self, argument: str) -> Iterator[Picture]:
        """``GRADIENT | caption``: the share of successes over steps."""
        name, _, caption = argument.partition(" | ")
        gradient = choose("gradient", name, _GRADIENTS)
        yield Picture(f"attack-{name}", caption, draw_attacks(self.study("attack"), gradient))

    def policy_curves(self, argument: str) -> Iterator[Picture]:
        """``NAME, … | caption``: returns over episodes."""
        names, _, caption = argument.partition(" | ")
        studies = self.policies(names)
        file = f"policies-{studies[0]['environment']}"
        yield Picture(file, caption, curves_of_policies(studies))

    def policy_cell(self, name: str, column: str) -> Cell:
        study = self._policy(name)
        seeds = [run["last_100"]["value"] for run in study["runs"]]
        last = study["last_100"]
        cells = {
            "last_100": Cell(last["value"], last["error"]),
            "worst": Cell(min(seeds)),
            "best": Cell(max(seeds)),
        }
        return replace(choose("number", column, cells), seeds=len(seeds))

    def toy_cell(self, what: str, column: str) -> Cell:
        parts = list(self.study("toy")["parts"].values())
        if what == "accuracy":
            shares = [choose("accuracy", column, part["accuracy"]) for part in parts]
            return replace(averaged(shares, [None] * len(parts)), seeds=len(parts))
        kinds = [kind_of(spreads_of(part)) for part in parts]
        counts = {kind.replace(" ", "-"): kinds.count(kind) for kind in (DUPLICATED, ORTHOGONAL)}
        return Cell(choose("kind", column, counts), seeds=len(parts))

    def attack_cell(self, network: str, gradient: str) -> Cell:
        part = choose("attack", f"{network}, {gradient}", self.study("attack")["parts"])
        return Cell(part["success"][-1], part["error"][-1], seeds=1)
