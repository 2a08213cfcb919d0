"""Training steps of the methods of the leaderboard, relative to the plain network, in turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.lab.files import write_text
from leanbayes.lab.provenance import environment_facts
from research.measuring.harness import CLOCKS, as_json, measure
from research.measuring.machine import facts
from research.studies.leaderboard.methods import MEMBERS, RATES, Job
from research.studies.leaderboard.page import COSTS
from research.studies.leaderboard.peers import available, bayesian_torch_step, ivon_step
from research.studies.leaderboard.tasks import TASKS

MEASURED = ("mlp", "cnn", "cifar", "lstm", "uci-energy")
Step = Callable[[Tensor, Tensor], object]


def _step(job: Job, model: nn.Module) -> Step:
    """Return a step of AdamW, with the KL if the model has one."""
    likelihood, size = job.task.likelihood(), len(job.rows.x)
    optimizer = torch.optim.AdamW([*model.parameters(), *likelihood.parameters()], job.task.lr)
    converted = bool(lb.named_kl(model))

    def step(x: Tensor, y: Tensor) -> None:
        loss = likelihood.nll(model(x), y)
        if converted:
            loss = lb.elbo(loss, model, data_size=size).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def _ensemble(job: Job) -> Step:
    members = [_step(job, job.network(seed=seed)) for seed in range(MEMBERS)]
    return lambda x, y: [step(x, y) for step in members]


_STEPS: Mapping[str, Callable[[Job], Step]] = {
    "plain": lambda job: _step(job, job.network()),
    "k-tied": lambda job: _step(job, lb.convert(job.network())),
    "MC dropout": lambda job: _step(job, job.network(RATES[0])),
    "rank-1 mixture": lambda job: _step(
        job, lb.convert(job.network(), lb.Rank1(members=4, batch="split"))
    ),
    "ensemble of 5": _ensemble,
    "IVON": lambda job: ivon_step(job, job.network(), job.task.likelihood())[1],
    "bayesian-torch": lambda job: bayesian_torch_step(
        job, nn.Sequential(job.network()), job.task.likelihood()
    )[1],
}


def measure_costs(
    folder: Path, *, rounds: int, tasks: Sequence[str] = MEASURED, tell: Callable[[str], object]
) -> Path:
    """Measure a step of every method that trains by processor time of one thread, and write it."""
    torch.set_num_threads(1)
    installed, found = available(), {}
    names = [n for n in _STEPS if n in installed or n not in ("IVON", "bayesian-torch")]
    for name in tasks:
        task = TASKS[name]
        rows = task.read(0)
        job = Job(name, task, rows, 0, folder)
        x, y = rows.x[: task.batch], rows.y[: task.batch]
        steps = {each: _bound(_STEPS[each](job), x, y) for each in names}
        costs = measure(steps.pop("plain"), steps, rounds=rounds, clock=CLOCKS["cpu"])
        found[name] = as_json(costs)
        tell(
            f"{task.title}: " + ", ".join(f"{n} {c['median']:.2f}" for n, c in found[name].items())
        )
    record: dict[str, Any] = {"steps": found, "rounds": rounds, **facts(), **environment_facts()}
    return write_text(folder / COSTS, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _bound(step: Step, x: Tensor, y: Tensor) -> Callable[[], object]:
    return lambda: step(x, y)
