"""How much faster a compacted network is, beside how many multiply-adds fewer it takes.

The network of a finished run, pruned by the relevance of rows and columns, and what
``lb.compact`` leaves of it take turns in one process, in batches of its test images: a pass of the
plain network of the means, and one sample of the Bayesian one.

    python -m research.benchmarks.compaction runs/fashion-mnist-mlp-group-mn
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.lab.files import write_json
from leanbayes.lab.runs import Run
from research.measuring.harness import CLOCKS, as_json, facts, measure
from research.papers.matrix_normal.sparse.compaction import COMPACTED, smaller

OUT = Path("results/bench/compaction.json")
BATCH = 256


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
    """The cost of a smaller network relative to the whole one, by kind of network."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a finished run folder")
    parser.add_argument("--log-alpha", type=float, action="append", help="a threshold; all")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--rounds", type=int, default=20, help="turns of every network (≥ 2)")
    parser.add_argument("--threads", type=int, help="threads of torch; its own choice by default")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu for a busy machine")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds is {options.rounds}; quartiles need at least 2")
    if options.threads:
        torch.set_num_threads(options.threads)
    began, run, clock = time.monotonic(), Run(options.run), CLOCKS[options.clock]
    model, _ = run.load()
    x, sweep = run.dataset.test[: options.batch].x, []
    for log_alpha in options.log_alpha or COMPACTED:
        networks = speeds(model, x, log_alpha, rounds=options.rounds, clock=clock)
        show(log_alpha, networks)
        sweep.append({"log_alpha": log_alpha, **networks})
    result = {
        **facts(),
        "name": run.recipe.name,
        "seed": run.recipe.seed,
        "batch": options.batch,
        "config": {"rounds": options.rounds, "clock": options.clock},
        "sweep": sweep,
        "duration": round(time.monotonic() - began, 1),
    }
    write_json(options.out, result)
    print(f"Written to {options.out}.")


if __name__ == "__main__":
    main()
