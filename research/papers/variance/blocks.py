"""Blocks of pages that show the toy of four classes, the attacks and the policies."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

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
    Study,
    commands_of_policies,
    curves_of_policies,
    read_policy,
    table_of_policies,
)
from research.publishing.cells import Cell, averaged
from research.publishing.paper_blocks import OwnBlocks, Picture
from research.publishing.study_file import read_study


def study_blocks(results: Path) -> OwnBlocks:
    """Return what makes the blocks ``toy``, ``attacks`` and ``policies`` and their pictures.

    ``policies`` and ``policy-curves`` name studies, ``CartPole-v0-variance, …``. A claim names a
    mean return by ``policy/NAME last_100``, and a share of successes after the last step by
    ``attack/NETWORK GRADIENT``. Of the toy it names ``toy/accuracy KIND``, and by
    ``toy/kind orthogonal-codes`` how many seeds found a solution of a kind.
    """

    def study(name: str) -> Study:
        return read_study(results / "studies" / f"{name}.json", f"papers {name}")

    def policies(names: str) -> list[Study]:
        return [read_policy(results / "policies" / f"{name}.json") for name in names.split(", ")]

    def policies_table(names: str) -> str:
        studies = policies(names)
        return "\n\n".join((table_of_policies(studies), commands_of_policies(studies)))

    def attack_curves(gradient: str) -> Iterator[Picture]:
        yield Picture(f"attack-{gradient}", draw_attacks(study("attack"), gradient))

    def policy_curves(names: str) -> Iterator[Picture]:
        studies = policies(names)
        yield Picture(f"policies-{studies[0]['environment']}", curves_of_policies(studies))

    def attack_cell(network: str, gradient: str) -> Cell:
        part = choose("attack", f"{network}, {gradient}", study("attack")["parts"])
        return Cell(part["success"][-1], part["error"][-1], seeds=1)

    return OwnBlocks(
        tables={
            "toy": lambda _: seeds_table(study("toy")),
            "attacks": lambda _: attacks_table(study("attack")),
            "policies": policies_table,
        },
        pictures={
            "toy-clouds": lambda _: [Picture("toy", draw_activations(study("toy")))],
            "attack-curves": attack_curves,
            "policy-curves": policy_curves,
        },
        cells={
            "policy": lambda name, column: _policy_cell(policies(name)[0], column),
            "attack": attack_cell,
            "toy": lambda what, column: _toy_cell(study("toy"), what, column),
        },
    )


def _policy_cell(study: Study, column: str) -> Cell:
    last = study[column]
    return Cell(last["value"], last["error"], seeds=len(study["runs"]))


def _toy_cell(study: Study, what: str, column: str) -> Cell:
    parts = list(study["parts"].values())
    if what == "accuracy":
        shares = [choose("accuracy", column, part["accuracy"]) for part in parts]
        return replace(averaged(shares, [None] * len(parts)), seeds=len(parts))
    kinds = [kind_of(spreads_of(part)) for part in parts]
    counts = {kind.replace(" ", "-"): kinds.count(kind) for kind in (DUPLICATED, ORTHOGONAL)}
    return Cell(choose("kind", column, counts), seeds=len(parts))
