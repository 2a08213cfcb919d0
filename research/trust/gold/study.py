"""The study: NUTS predictions of every problem, then how near every method comes."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from leanbayes.lab.provenance import environment_facts
from research.publishing.study_file import StudyFile, Tell
from research.trust.gold import nuts
from research.trust.gold.compare import compared, gold_of, halves, read
from research.trust.gold.methods import METHODS, Training, predictions
from research.trust.gold.problems import PROBLEMS

HALVES = "one half of the chains, against the other"


def stored(folder: Path, problem: str) -> Path:
    """Where the gold predictions of a problem are."""
    return folder / f"{re.sub(r'[^a-z0-9]+', '-', problem.lower())}.npz"


def study_nuts(settings: nuts.Chains, folder: Path, tell: Tell) -> dict[str, Any]:
    """Sample every posterior and store its predictions."""

    def part(name: str) -> Mapping[str, Any]:
        arrays, facts = nuts.sample(PROBLEMS[name](), settings)
        nuts.save(stored(folder, name), arrays)
        return {**facts, **environment_facts()}

    parts = {name: partial(part, name) for name in PROBLEMS}
    file = StudyFile(folder / "nuts.json", "NUTS chains", asdict(settings))
    return file.fill(parts, tell)


def study_methods(settings: Training, seeds: int, folder: Path, tell: Tell) -> dict[str, Any]:
    """Train every method on every problem that has gold predictions, and compare."""
    torch.set_num_threads(1)

    def part(name: str, method: str, seed: int) -> Mapping[str, Any]:
        problem, started = PROBLEMS[name](), time.monotonic()
        gold = gold_of(problem, read(stored(folder, name)))
        found = predictions(METHODS[method], problem, settings, seed)
        duration = time.monotonic() - started
        return {**compared(problem, found, gold), "duration": duration, **environment_facts()}

    def noise(name: str) -> Mapping[str, Any]:
        problem = PROBLEMS[name]()
        return compared(problem, *halves(problem, read(stored(folder, name))))

    known = [name for name in PROBLEMS if stored(folder, name).exists()]
    parts = {f"{name} | {HALVES}": partial(noise, name) for name in known}
    for seed, method, name in product(range(seeds), METHODS, known):
        parts[f"{name} | {method} | seed {seed}"] = partial(part, name, method, seed)
    return StudyFile(folder / "methods.json", "gold posterior", asdict(settings)).fill(parts, tell)
