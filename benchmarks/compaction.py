"""How much faster a compacted network is, beside how many multiply-adds fewer it takes.

The network of a finished run, pruned by the relevance of rows and columns, and what
``lb.compact`` leaves of it take turns in one process, in batches of its test images: a pass of the
plain network of the means, and one sample of the Bayesian one.

    python -m benchmarks.compaction runs/fashion-mnist-mlp-group-mn
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import CLOCKS, as_json, facts, measure
from leanbayes.lab.files import write_json
from leanbayes.lab.runs import Run
from papers.studies.sparse.compaction import smaller
from papers.studies.sparse.study import LOG_ALPHA

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
    run: Run,
    *,
    log_alpha: float = LOG_ALPHA,
    batch: int = BATCH,
    rounds: int = 30,
    repeats: int = 10,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, Any]]:
    """The cost of a smaller network relative to the whole one, by kind of network."""
    model, _ = run.load()
    x = run.dataset.test[:batch].x
    found = {}
    for kind, (masked, (small, report)) in smaller(model, x, log_alpha).items():
        if report.multiply_adds is None:
            raise ValueError(f"{run.folder} cannot be made smaller: {report.kept[0]}")
        whole = passes(masked if kind == "plain" else model, x, repeats)
        costs = measure(whole, {kind: passes(small, x, repeats)}, rounds=rounds, clock=clock)
        before, after = report.multiply_adds
        found[kind] = {
            "multiply_adds": [before, after],
            "fewer": before / after,
            "cost": as_json(costs)[kind],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a finished run folder")
    parser.add_argument("--log-alpha", type=float, default=LOG_ALPHA, help="groups above are zero")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--rounds", type=int, default=30, help="turns of every network (≥ 2)")
    parser.add_argument("--threads", type=int, help="threads of torch; its own choice by default")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu for a busy machine")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds is {options.rounds}; quartiles need at least 2")
    if options.threads:
        torch.set_num_threads(options.threads)
    began, run = time.monotonic(), Run(options.run)
    networks = speeds(
        run,
        log_alpha=options.log_alpha,
        batch=options.batch,
        rounds=options.rounds,
        clock=CLOCKS[options.clock],
    )
    for kind, found in networks.items():
        cost = found["cost"]
        print(
            f"{kind}: {found['fewer']:.2f} times fewer multiply-adds, {1 / cost['median']:.2f} "
            f"times faster ({1 / cost['high']:.2f}–{1 / cost['low']:.2f})"
        )
    result = {
        **facts(),
        "name": run.recipe.name,
        "seed": run.recipe.seed,
        "batch": options.batch,
        "config": {
            "rounds": options.rounds,
            "clock": options.clock,
            "log_alpha": options.log_alpha,
        },
        "networks": networks,
        "duration": round(time.monotonic() - began, 1),
    }
    write_json(options.out, result)
    print(f"Written to {options.out}.")


if __name__ == "__main__":
    main()
