"""Variants of the recommended recipe on validation rows of the leaderboard's tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim import AdamW, Optimizer

import leanbayes as lb
from leanbayes.lab.provenance import environment_facts
from leanbayes.parameters.scales import Scale
from leanbayes.priors import He, Hierarchical, Normal, Prior
from leanbayes.training.schedules import random_weights
from research.publishing.pages import Makers
from research.publishing.study_file import StudyFile, Tell
from research.publishing.tables import markdown_table
from research.studies.defaults.runs import difference
from research.studies.leaderboard.methods import METHODS, Job, Trained, count, own_loop, sampled
from research.studies.leaderboard.study import judge
from research.studies.leaderboard.tasks import TASKS

FIRST_SEED = 10
"""Seeds and splits of the leaderboard are below."""
BASELINES = ("plain", "MC dropout")


@dataclass(frozen=True)
class Variant:
    """A recipe: posterior, prior, KL weight ``min(most, N / (examples · P))`` and training.

    Args:
        start: First standard deviation, times the root of the fan-in.
        prior: Prior of every weight.
        examples: Examples per random weight from which the KL weight is ``most``.
        most: Largest KL weight.
        scales: Factor on the learning rate of standard deviations.
        options: Further arguments of ``lb.fit``.
        conversion: Further arguments of ``lb.convert``.
    """

    start: float = 0.1
    prior: Prior = field(default_factory=He)
    examples: float = 2.0
    most: float = 1.0
    scales: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    conversion: Mapping[str, Any] = field(default_factory=dict)

    def train(self, job: Job) -> Trained:
        """Train the network of a task."""
        scale = Scale(self.start, raw_spread=0.1, by_fan_in=True)
        model = lb.convert(job.network(), lb.KTied(2, scale), self.prior, **self.conversion)
        task, rows, likelihood = job.task, job.rows, job.task.likelihood()
        weight = min(self.most, len(rows.x) / (self.examples * random_weights(model)))
        torch.manual_seed(job.seed)
        if task.sgd:
            own_loop(job, model, weight)
        else:
            lb.fit(
                model, (rows.x, rows.y), epochs=task.epochs, likelihood=likelihood, lr=task.lr,
                batch_size=task.batch, seed=job.seed, kl_weight=weight, progress=False,
                optimizer=self._optimizer, **self.options,
            )  # fmt: skip
        return Trained(sampled(job, model, likelihood), count(model), 20)

    def _optimizer(self, groups: list[dict[str, Any]]) -> Optimizer:
        faster = {"scales": self.scales}
        rates = [faster.get(group["role"], 1.0) * group["initial_lr"] for group in groups]
        return AdamW([
            {**group, "lr": rate, "initial_lr": rate}
            for group, rate in zip(groups, rates, strict=True)
        ])  # fmt: skip


BEFORE = Variant()
"""The recipe that the search of results/defaults.json found."""
VARIANTS: Mapping[str, Variant] = {
    "before": BEFORE,
    "KL weight at most 0.5": replace(BEFORE, most=0.5),
    "KL weight at most 0.3": replace(BEFORE, most=0.3),
    "KL weight at most 0.1": replace(BEFORE, most=0.1),
    "4 examples per weight": replace(BEFORE, examples=4.0),
    "first scale halved": replace(BEFORE, start=0.05),
    "first scale 0.3 of it": replace(BEFORE, start=0.03),
    "scales 5 times as fast": replace(BEFORE, scales=5.0),
    "no warm-up": replace(BEFORE, options={"kl_warmup": 0.0}),
    "warm-up over all steps": replace(BEFORE, options={"kl_warmup": 1.0}),
    "warm-up over 40%": replace(BEFORE, options={"kl_warmup": 0.4}),
    "hierarchical prior, spread 0.5": replace(BEFORE, prior=Hierarchical(1.0, 0.5)),
    "learned prior scale": replace(BEFORE, prior=Normal(0.3, learn="layer")),
    "KL weight at most 0.5, warm-up over all steps": replace(
        BEFORE, most=0.5, options={"kl_warmup": 1.0}
    ),
    "noise per output": replace(BEFORE, conversion={"estimator": lb.estimators.local}),
}
EVERY = (*BASELINES, *VARIANTS)


def one(name: str, method: str, seed: int, states: Path) -> dict[str, Any]:
    """Train a variant or a baseline and judge it on validation rows."""
    began, task = time.process_time(), TASKS[name]
    rows = task.read(seed)
    job = Job(name, task, rows, seed, states)
    trained = METHODS[method](job) if method in BASELINES else VARIANTS[method].train(job)
    held_out = rows._replace(
        test_x=rows.validation_x, test_y=rows.validation_y, corrupted_x=(), ood_x=None
    )
    return {
        "task": name,
        "method": method,
        "seed": seed,
        "validation": judge(trained, held_out),
        "duration": round(time.process_time() - began, 1),
        **environment_facts(),
    }


def study_variants(
    out: Path,
    states: Path,
    *,
    tasks: Sequence[str],
    methods: Sequence[str] = (),
    seeds: int = 2,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Train every variant that the file lacks, seed by seed."""
    file = StudyFile(out, "variants of the recipe", {"first seed": FIRST_SEED})
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        f"{name}; {method}; seed {seed}": partial(one, name, method, seed, states)
        for name in tasks
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for method in methods or EVERY
    }
    return file.fill(parts, tell)


def makers(study: Mapping[str, Any]) -> Makers:
    """Return what makes the table of docs/train_well.md."""
    return {"variants": lambda score: table(study, score)}


def table(study: Mapping[str, Any], score: str) -> str:
    """Return differences from the recipe before, paired by seed, of every task."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for part in study["parts"].values():
        by_seed = found.setdefault((part["task"], part["method"]), {})
        by_seed[part["seed"]] = part["validation"][score]
    tasks = [name for name in TASKS if (name, "before") in found]
    lines = []
    for method in EVERY:
        gaps = [_gap(found.get((t, method), {}), found[t, "before"]) for t in tasks]
        if method != "before" and any(gaps):
            lines.append([method, *gaps])
    return markdown_table(["recipe", *(TASKS[name].title for name in tasks)], lines, text=1)


def _gap(ours: Mapping[int, float], before: Mapping[int, float]) -> str:
    gap = difference([ours[seed] - before[seed] for seed in ours if seed in before])
    return f"{gap} ({gap.pairs})" if gap else ""
