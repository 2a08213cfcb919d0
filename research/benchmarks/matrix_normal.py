"""What a step of correlated weights costs, relative to independent ones [matrix normal, 7].

A step is the forward pass, the KL, the backward pass and Adam, on the networks, posteriors, priors
and batches of the matrix-normal recipes. Posteriors and DIAG take turns in one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim import Adam

from leanbayes.lab.files import write_json
from leanbayes.lab.from_recipe import build_model
from leanbayes.lab.recipe_files import read_recipe
from research.benchmarks.methods import descent, negative_elbo
from research.measuring.harness import CLOCKS, Cost, as_json, measure
from research.measuring.machine import facts

SHAPE, DATA_SIZE, SEED = (1, 28, 28), 60_000, 0
NETWORKS = {"FC-300": "mnist-mlp", "CNN": "fashion-mnist-cnn"}
DIAG = "diag"
POSTERIORS = {"MN": "mn", "MN+Diagonal": "mn-diagonal", "k-tied 2": "k-tied"}


def step_of(recipe: str) -> Callable[[], object]:
    """Return one training step of a recipe, at its cpu budget, on random images."""
    spec = read_recipe(f"matrix_normal/{recipe}", budget="cpu")
    torch.manual_seed(SEED)
    batch = spec.training.batch_size
    x, y = torch.rand(batch, *SHAPE), torch.randint(10, (batch,))
    model = build_model(spec).train()
    optimizer = Adam(model.parameters(), lr=spec.optimizer.lr)
    step = descent(optimizer, negative_elbo(model, data_size=DATA_SIZE))
    return lambda: step(x, y)


def costs_of(network: str, rounds: int, clock: Callable[[], float]) -> dict[str, Cost]:
    """Return what every posterior costs relative to independent weights."""
    steps = {title: step_of(f"{network}-{name}") for title, name in POSTERIORS.items()}
    return measure(step_of(f"{network}-{DIAG}"), steps, rounds=rounds, clock=clock)


def show(network: str, costs: Mapping[str, Cost]) -> None:
    for posterior, cost in costs.items():
        calm = "" if cost.calm else ", on a busy machine"
        print(
            f"{network}, {posterior}: {cost.median:.2f} ({cost.low:.2f}–{cost.high:.2f}) steps of "
            f"DIAG{calm}",
            flush=True,
        )


def measure_steps(rounds: int, clock: str, out: Path) -> None:
    """Measure all posteriors on both networks, and write the file of results."""
    began, networks = time.monotonic(), {}
    for title, name in NETWORKS.items():
        costs = costs_of(name, rounds, CLOCKS[clock])
        show(title, costs)
        networks[title] = {"recipes": name, "costs": as_json(costs)}
    result: dict[str, Any] = {
        **facts(),
        "seed": SEED,
        "config": {"rounds": rounds, "clock": clock},
        "networks": networks,
        "duration": round(time.monotonic() - began, 1),
    }
    write_json(out, result)
