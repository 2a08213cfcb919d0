"""What a training step costs in every family, relative to the deterministic network.

A step is the forward pass, the KL, the backward pass and Adam; the forward pass is also timed
alone, without gradients, as a prediction needs it. All families take turns in one process; the
numbers are medians of the ratios of single rounds, with their quartiles. Every layer is converted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam

import leanbayes as lb
from leanbayes.errors import choose
from leanbayes.lab.demo.families import DETERMINISTIC, FAMILIES, Family
from leanbayes.lab.files import write_json
from research.benchmarks.methods import DATA_SIZE, training_step
from research.benchmarks.networks import Setup, mlp
from research.measuring.harness import CLOCKS, as_json
from research.measuring.harness import measure as measure_turns
from research.measuring.machine import facts


def lenet() -> nn.Sequential:
    """Return a LeNet for images of 28 × 28."""
    features = (nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2))
    more_features = (nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2))
    classifier = (nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))
    return nn.Sequential(*features, *more_features, *classifier)


SETUPS = {
    "mlp_128": Setup("MLP, batch 128", mlp, 128, (784,)),
    "mlp_1024": Setup("MLP, batch 1024", mlp, 1024, (784,)),
    "cnn_128": Setup("LeNet, batch 128", lenet, 128, (1, 28, 28)),
}

SINGLE = tuple(
    dataclasses.replace(family, include=("**",))
    for family in FAMILIES
    if family.networks == 1 and not family.dropout
)


def chosen(group: str | None, estimator: str | None) -> list[Family]:
    """The plain network and the families of a group, all with one estimator if it is named."""
    families = [f for f in SINGLE if group in (None, f.group) or f.name == DETERMINISTIC.name]
    if estimator is None:
        return families
    return [dataclasses.replace(f, estimator=estimator) for f in families]


def predict_step(model: nn.Module, x: Tensor) -> Callable[[], object]:
    tiled = lb.tile(x, lb.extend.members(model))

    @torch.no_grad()
    def step() -> object:
        return model(tiled)

    return step


def train_step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    optimizer = Adam(model.parameters(), lr=1e-3)
    return lambda: training_step(model, optimizer, x, y, data_size=DATA_SIZE)


def measure(
    setup: Setup, families: Sequence[Family], rounds: int, clock: Callable[[], float]
) -> dict[str, Any]:
    """Return what steps and passes of families cost, relative to the deterministic network."""
    torch.manual_seed(0)
    x, y = setup.data()
    models = {family.name: family.converted(setup.network()) for family in families}
    kinds = {
        "step": {name: train_step(model, x, y) for name, model in models.items()},
        "forward": {name: predict_step(model, x) for name, model in models.items()},
    }
    costs = {
        kind: as_json(
            measure_turns(works.pop(DETERMINISTIC.name), works, rounds=rounds, clock=clock)
        )
        for kind, works in kinds.items()
    }
    same = {"median": 1.0, "low": 1.0, "high": 1.0}
    return {
        "families": {
            name: {k: found.get(name, same) for k, found in costs.items()} for name in models
        }
    }


def measure_families(
    setups: Sequence[str],
    group: str | None,
    estimator: str | None,
    rounds: int,
    clock: str,
    out: Path,
) -> None:
    """Measure families on set-ups, all if none is named, and write the file of results."""
    families, found = chosen(group, estimator), {}
    for name in setups or SETUPS:
        setup = choose("set-up", name, SETUPS)
        try:
            found[name] = measure(setup, families, rounds, CLOCKS[clock])
        except ValueError as error:
            raise ValueError(
                f"--estimator {estimator} does not suit every family: {error}"
            ) from error
        for family, costs in found[name]["families"].items():
            shown = (
                f"{kind} {cost['median']:.2f} ({cost['low']:.2f}–{cost['high']:.2f})"
                for kind, cost in costs.items()
            )
            print(f"{name}, {family}: {', '.join(shown)}", flush=True)
    config = {"rounds": rounds, "clock": clock}
    write_json(out, {**facts(), "config": config, "estimator": estimator, "setups": found})
