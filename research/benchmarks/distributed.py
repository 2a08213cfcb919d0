"""Two processes with one thread each under DDP, against one process with one thread.

*Weak* scaling gives every process the whole batch: its efficiency is the time of a step of one
process over that of two. *Strong* scaling splits the batch: its speed-up is the same quotient, at
best 2. In every round the first process works alone while the other waits, then both work.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam

import leanbayes as lb
from research.benchmarks.methods import DATA_SIZE, PRIOR
from research.benchmarks.networks import mlp
from research.benchmarks.step import Options
from research.measuring.harness import Probe, Turn, Work, cost
from research.measuring.machine import facts
from research.measuring.processes import together

PROCESSES, BATCH = 2, 1024
POSTERIORS: dict[str, lb.posteriors.Posterior | None] = {
    "plain": None,
    "k-tied 2": lb.KTied(2),
    "mean field": lb.MeanField(),
}


def run(options: Options) -> dict[str, Any]:
    """Return weak and strong scaling of every posterior."""
    with tempfile.TemporaryDirectory() as folder:
        batch = options.examples(BATCH)
        together(_work, folder, max(3, options.rounds // 2), batch, processes=PROCESSES)
        found = json.loads((Path(folder) / "found.json").read_text(encoding="utf-8"))
    return {**facts(), "processes": PROCESSES, "batch": batch, "posteriors": found}


def _work(rank: int, folder: str, rounds: int, batch: int) -> None:
    found = {name: _scaling(posterior, rounds, batch) for name, posterior in POSTERIORS.items()}
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found), encoding="utf-8")


def _scaling(posterior: lb.posteriors.Posterior | None, rounds: int, batch: int) -> dict[str, Any]:
    torch.manual_seed(0)
    x, y = torch.rand(batch, 784), torch.randint(10, (batch,))
    half = slice(0, batch // PROCESSES)
    alone = _step(_model(posterior), x, y)
    shared = _model(posterior, together=True)
    together = {"weak": _step(shared, x, y), "strong": _step(shared, x[half], y[half])}
    probe = Probe()
    turns: dict[str, list[Turn]] = {name: [] for name in together}
    for number in range(rounds + 1):
        before = probe()
        one = _timed(alone if dist.get_rank() == 0 else _nothing)
        two = {name: _timed(work) for name, work in together.items()}
        calm = max(before, probe())
        if number:  # the first round warms up
            for name, seconds in two.items():
                turns[name].append(Turn(seconds, one, calm))
    return {name: vars(cost(found)) for name, found in turns.items()}


def _model(posterior: lb.posteriors.Posterior | None, *, together: bool = False) -> nn.Module:
    net = mlp()
    model = net if posterior is None else lb.convert(net, posterior, PRIOR)
    return DistributedDataParallel(model) if together else model


def _step(model: nn.Module, x: Tensor, y: Tensor) -> Work:
    optimizer = Adam(model.parameters(), lr=1e-3)
    bayesian = any(True for _ in lb.extend.random_maps(model))

    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        if bayesian:
            loss = lb.elbo(loss, lb.kl(model), data_size=DATA_SIZE).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def _timed(work: Work) -> float:
    """Return seconds from a common start to the end of the slowest, of the second of two runs."""
    work()
    dist.barrier()
    start = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - start


def _nothing() -> None:
    """What a process does while another works alone."""
