"""Variants of the recommended recipe on validation rows of the leaderboard's tasks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

import leanbayes as lb
from leanbayes.lab.provenance import environment_facts
from leanbayes.likelihoods import Likelihood
from leanbayes.parameters.scales import Scale
from leanbayes.priors import He, Hierarchical, Normal, Prior
from leanbayes.training.schedules import random_weights
from research.publishing.pages import Makers
from research.publishing.study_file import StudyFile, Tell
from research.publishing.tables import markdown_table
from research.studies.defaults.runs import Difference, difference
from research.studies.leaderboard.methods import (
    METHODS,
    SAMPLES,
    Job,
    Trained,
    count,
    own_loop,
    sampled,
)
from research.studies.leaderboard.study import judge
from research.studies.leaderboard.tasks import TASKS

FIRST_SEED = 10
"""Seeds and splits of the leaderboard are below."""
Fitted = tuple[nn.Module, Likelihood]
BASELINES = ("plain", "MC dropout")


@dataclass(frozen=True)
class Variant:
    """A recipe: posterior, prior, KL weight ``min(most, N / (examples · P))`` and training.

    Args:
        start: First standard deviation, times the root of the fan-in; that of ``lb.convert(net)``
            if not given.
        prior: Prior of every weight.
        examples: Examples per random weight from which the KL weight is ``most``.
        most: Largest KL weight.
        by_root: Whether the KL weight is at most ``√(P / N)`` as well.
        scales: Factor on the learning rate of standard deviations.
        averaged: Share of the steps at the end whose parameters are averaged.
        calibrated: Whether half of the held-out rows fit the temperature or noise scale with which
            the other half is judged, and the other way round.
        samples: Draws per prediction.
        options: Further arguments of ``lb.fit``.
        conversion: Further arguments of ``lb.convert``.
    """

    start: float | None = 0.1
    prior: Prior = field(default_factory=He)
    examples: float = 2.0
    most: float = 1.0
    by_root: bool = False
    scales: float = 1.0
    averaged: float = 0.0
    calibrated: bool = False
    samples: int = SAMPLES
    options: Mapping[str, Any] = field(default_factory=dict)
    conversion: Mapping[str, Any] = field(default_factory=dict)

    def train(self, job: Job) -> Fitted:
        """Train the network of a task."""
        task, rows, likelihood = job.task, job.rows, job.task.likelihood()
        model = lb.convert(job.network(), self._posterior(), self.prior, **self.conversion)
        weight, count = self._kl_weight(model, len(rows.x)), task.epochs * len(rows.x) // task.batch
        tail = Tail(round((1 - self.averaged) * count))
        torch.manual_seed(job.seed)
        if task.sgd:
            own_loop(job, model, weight)
        else:
            lb.fit(
                model, (rows.x, rows.y), epochs=task.epochs, likelihood=likelihood, lr=task.lr,
                batch_size=task.batch, seed=job.seed, kl_weight=weight, progress=False,
                optimizer=partial(self._optimizer, tail), **self.options,
            )  # fmt: skip
        if self.averaged:
            tail.load()
        return model, likelihood

    def _posterior(self) -> lb.KTied | None:
        if self.start is None:
            return None
        return lb.KTied(2, Scale(self.start, raw_spread=0.1, by_fan_in=True))

    def _kl_weight(self, model: nn.Module, size: int) -> float:
        count = random_weights(model)
        root = math.sqrt(count / size) if self.by_root else math.inf
        return min(self.most, size / (self.examples * count), root)

    def _optimizer(self, tail: Tail, groups: list[dict[str, Any]]) -> Optimizer:
        faster = {"scales": self.scales}
        rates = [faster.get(group["role"], 1.0) * group["initial_lr"] for group in groups]
        optimizer = AdamW([
            {**group, "lr": rate, "initial_lr": rate}
            for group, rate in zip(groups, rates, strict=True)
        ])  # fmt: skip
        if self.averaged:
            optimizer.register_step_post_hook(tail.add)
        return optimizer

    def judge(self, job: Job) -> dict[str, float]:
        """Train, and measure held-out rows."""
        model, likelihood = self.train(job)
        x, y = job.rows.validation_x, job.rows.validation_y
        if not self.calibrated:
            return _judged(job, model, likelihood, x, y, self.samples)
        halves = [(x[first::2], y[first::2]) for first in (0, 1)]
        scores = [
            _judged(job, model, lb.calibrate(model, other, likelihood=likelihood), *half, SAMPLES)
            for half, other in (halves, halves[::-1])
        ]
        return {name: (scores[0][name] + scores[1][name]) / 2 for name in scores[0]}


class Tail:
    """Averages of parameters over the steps from ``first`` on."""

    def __init__(self, first: int) -> None:
        self._first, self._steps = first, 0
        self._means: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def add(self, optimizer: Optimizer, *_: object) -> None:
        """Add the parameters after a step."""
        self._steps += 1
        if self._steps < self._first:
            return
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            mean = self._means.setdefault(parameter, parameter.detach().clone())
            mean.lerp_(parameter.detach(), 1 / (self._steps - self._first + 1))

    @torch.no_grad()
    def load(self) -> None:
        """Put the averages in place of the parameters."""
        for parameter, mean in self._means.items():
            parameter.copy_(mean)


def _judged(
    job: Job, model: nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor, samples: int
) -> dict[str, float]:
    held_out = job.rows._replace(test_x=x, test_y=y, corrupted_x=(), ood_x=None)
    trained = Trained(sampled(job, model, likelihood, samples), count(model), samples)
    return judge(trained, held_out)


BEFORE = Variant()
"""The recipe that the search of results/defaults.json found."""
NOW = Variant(start=None, most=0.5)
"""The recipe of ``lb.convert(net)``: half the KL weight at most, half the start with batch norm."""
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
    "now": NOW,
    "now, KL weight at most √(P/N)": replace(NOW, by_root=True),
    "now, warm-up over all steps": replace(NOW, options={"kl_warmup": 1.0}),
    "now, first scale halved": replace(NOW, start=0.05),
    "now, average of the last quarter": replace(NOW, averaged=0.25),
    "now, calibrated on held-out rows": replace(NOW, calibrated=True),
    "now, 100 samples": replace(NOW, samples=100),
    "now, hierarchical prior, spread 0.5": replace(NOW, prior=Hierarchical(1.0, 0.5)),
    "now, noise per output": replace(NOW, conversion={"estimator": lb.estimators.local}),
}
EVERY = (*BASELINES, *VARIANTS)


def one(name: str, method: str, seed: int, states: Path) -> dict[str, Any]:
    """Train a variant or a baseline and judge it on validation rows."""
    began, task = time.process_time(), TASKS[name]
    rows = task.read(seed)
    job = Job(name, task, rows, seed, states)
    if method in BASELINES:
        held_out = rows._replace(
            test_x=rows.validation_x, test_y=rows.validation_y, corrupted_x=(), ood_x=None
        )
        found = judge(METHODS[method](job), held_out)
    else:
        found = VARIANTS[method].judge(job)
    return {
        "task": name,
        "method": method,
        "seed": seed,
        "validation": found,
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
    """Return what makes the tables of docs/train_well.md."""
    return {"variants": lambda words: table(study, *words.split("; "))}


def baseline_of(method: str) -> str:
    """Return the recipe with which a variant is compared."""
    return "now" if method.startswith("now,") else "before"


def gaps(
    study: Mapping[str, Any], method: str, score: str, base: str = ""
) -> dict[str, Difference | None]:
    """Return differences of a variant from its baseline, paired by seed, by task."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for part in study["parts"].values():
        by_seed = found.setdefault((part["task"], part["method"]), {})
        by_seed[part["seed"]] = part["validation"][score]
    base = base or baseline_of(method)
    return {
        task: difference(
            [
                value - found[task, base][seed]
                for seed, value in found.get((task, method), {}).items()
                if seed in found[task, base]
            ]
        )
        for task in TASKS
        if (task, base) in found
    }


def table(study: Mapping[str, Any], score: str, base: str = "before") -> str:
    """Return differences from the recipe before, or from that of now, of every task."""
    lines, tasks = [], list(gaps(study, base, score, base))
    for method in EVERY:
        known = method in BASELINES or baseline_of(method) == base
        by_task = gaps(study, method, score, base)
        if known and method != base and any(by_task.values()):
            lines.append(
                [method, *(f"{gap} ({gap.pairs})" if gap else "" for gap in by_task.values())]
            )
    return markdown_table(["recipe", *(TASKS[name].title for name in tasks)], lines, text=1)
