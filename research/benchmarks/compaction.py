"""How much faster a compacted network is, beside how many multiply-adds fewer it takes.

The network of a finished run, pruned by the relevance of rows and columns, and what
``lb.compact`` leaves of it take turns in one process, in batches of its test images: a pass of the
plain network of the means, and one sample of the Bayesian one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.lab.files import write_json
from leanbayes.lab.runs import Run
from research.measuring.harness import CLOCKS, as_json, measure
from research.measuring.machine import facts
from research.papers.matrix_normal.sparse.compaction import COMPACTED, smaller


def passes(model: nn.Module, x: Tensor, repeats: int) -> Callable[[], object]:
    """Several passes over one batch, without gradients: one alone is too short to be timed."""
    model = model.eval()

    @torch.no_grad()
    def run() -> object:
        for _ in range(repeats):
            y = model(x)
        return y

    return run


def speeds(
    model: nn.Module,
    x: Tensor,
    log_alpha: float,
    *,
    rounds: int = 20,
    repeats: int = 10,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, Any]]:
    """Return the cost of a smaller network relative to the whole one, by kind of network."""
    found = {}
    for kind, (masked, (small, report)) in smaller(model, x, log_alpha).items():
        if report.multiply_adds is None:
            raise ValueError(f"the network cannot be made smaller: {report.kept[0]}")
        whole = passes(masked if kind == "plain" else model, x, repeats)
        costs = measure(whole, {kind: passes(small, x, repeats)}, rounds=rounds, clock=clock)
        before, after = report.multiply_adds
        found[kind] = {
            "multiply_adds": [before, after],
            "fewer": before / after,
            "cost": as_json(costs)[kind],
        }
    return found


def show(log_alpha: float, networks: Mapping[str, Mapping[str, Any]]) -> None:
    for kind, found in networks.items():
        cost = found["cost"]
        print(
            f"log α < {log_alpha:g}, {kind}: {found['fewer']:.2f} times fewer multiply-adds, "
            f"{1 / cost['median']:.2f} times faster ({1 / cost['high']:.2f}–"
            f"{1 / cost['low']:.2f})",
            flush=True,
        )


def measure_speeds(
    run: Path, log_alphas: Sequence[float], batch: int, rounds: int, clock: str, out: Path
) -> None:
    """Measure the network of a run at every threshold, and write the file of results."""
    began, trained, sweep = time.monotonic(), Run(run), []
    model, _ = trained.load()
    x = trained.dataset.test[:batch].x
    for log_alpha in log_alphas or COMPACTED:
        networks = speeds(model, x, log_alpha, rounds=rounds, clock=CLOCKS[clock])
        show(log_alpha, networks)
        sweep.append({"log_alpha": log_alpha, **networks})
    result = {
        **facts(),
        "name": trained.recipe.name,
        "seed": trained.recipe.seed,
        "batch": batch,
        "config": {"rounds": rounds, "clock": clock},
        "sweep": sweep,
        "duration": round(time.monotonic() - began, 1),
    }
    write_json(out, result)
