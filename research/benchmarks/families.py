"""What a training step costs in every family, relative to the deterministic network.

A step is the forward pass, the KL, the backward pass and Adam; the forward pass is also timed
alone, without gradients, as a prediction needs it. All families take turns in one process; the
numbers are medians of the ratios of single rounds, with their quartiles. Every layer is converted.

    python -m research.benchmarks.families
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam

import leanbayes as lb
from leanbayes.estimators import ESTIMATORS
from leanbayes.lab.demo.families import DETERMINISTIC, FAMILIES, Family
from leanbayes.lab.files import write_json
from leanbayes.lab.timing import Ratio, interleaved, ratio, training_step, versions

DATA_SIZE = 50_000
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
NOISY = ("weights", "local", "flipout")


def mlp() -> nn.Module:
    """784-400-400-10, the network of the k-tied paper [k-tied]."""
    return nn.Sequential(
        nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10)
    )


def cnn() -> nn.Module:
    """A LeNet for images of 28 × 28."""
    features = (nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2))
    more_features = (nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2))
    classifier = (nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))
    return nn.Sequential(*features, *more_features, *classifier)


@dataclass(frozen=True)
class Setup:
    """A network and a batch."""

    network: Callable[[], nn.Module]
    batch: int
    shape: tuple[int, ...]


SETUPS = {
    "mlp_128": Setup(mlp, 128, (784,)),
    "mlp_1024": Setup(mlp, 1024, (784,)),
    "cnn_128": Setup(cnn, 128, (1, 28, 28)),
}

SINGLE = tuple(
    dataclasses.replace(family, include=("**",)) for family in FAMILIES if family.networks == 1
)


def chosen(group: str | None, estimator: str | None) -> list[Family]:
    """The plain network and the families of a group, all with one estimator if it is named."""
    families = [f for f in SINGLE if group in (None, f.group) or f.name == DETERMINISTIC.name]
    if estimator is None:
        return families
    return [dataclasses.replace(f, estimator=estimator) for f in families]


def converted(family: Family, net: nn.Module) -> nn.Module:
    """The given network as a member of a family."""
    if family.posterior is None:
        return net
    estimator = ESTIMATORS[family.estimator]
    return lb.convert(net, family.posterior, family.prior, estimator, include=family.include)


def predict_step(model: nn.Module, x: Tensor) -> Callable[[], object]:
    tiled = lb.tile(x, lb.members(model))

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
    torch.manual_seed(0)
    x, y = torch.rand(setup.batch, *setup.shape), torch.randint(10, (setup.batch,))
    models = {family.name: converted(family, setup.network()) for family in families}
    kinds: dict[str, Mapping[str, Callable[[], object]]] = {
        "step": {name: train_step(model, x, y) for name, model in models.items()},
        "forward": {name: predict_step(model, x) for name, model in models.items()},
    }
    seconds = {kind: interleaved(steps, rounds, clock) for kind, steps in kinds.items()}
    plain = {kind: times[DETERMINISTIC.name] for kind, times in seconds.items()}
    return {
        "deterministic_ms": {k: 1000 * statistics.median(t) for k, t in plain.items()},
        "families": {
            name: {kind: ratio(seconds[kind][name], plain[kind])._asdict() for kind in kinds}
            for name in models
        },
    }


def show(title: str, result: Mapping[str, Any]) -> None:
    plain = result["deterministic_ms"]
    print(
        f"\n{title}: deterministic step {plain['step']:.2f} ms, forward {plain['forward']:.2f} ms"
    )
    print(f"{'family':<28}{'step':>7}  quartiles   {'forward':>9}  quartiles")
    for name, costs in result["families"].items():
        cells = (Ratio(**costs[kind]) for kind in ("step", "forward"))
        texts = (f"{r.median:>7.2f}  {r.low:.2f}–{r.high:.2f}" for r in cells)
        print(f"{name:<28}" + "".join(f"{text:<23}" for text in texts).rstrip(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="turns of every family (≥ 2)")
    parser.add_argument("--threads", type=int, help="threads of torch; its own choice by default")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu for a busy machine")
    parser.add_argument("--setup", choices=SETUPS, action="append", help="all by default")
    parser.add_argument("--group", choices=sorted({f.group for f in SINGLE}), help="all by default")
    parser.add_argument("--estimator", choices=NOISY, help="for all families; else their own")
    parser.add_argument("--out", type=Path, default=Path("results/bench/families.json"))
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds is {options.rounds}; quartiles need at least 2")
    if options.threads:
        torch.set_num_threads(options.threads)
    families = chosen(options.group, options.estimator)
    setups = {}
    for name in options.setup or SETUPS:
        try:
            setups[name] = measure(SETUPS[name], families, options.rounds, CLOCKS[options.clock])
        except ValueError as error:
            parser.error(f"--estimator {options.estimator} does not suit every family: {error}")
        show(name, setups[name])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "clock": options.clock,
    }
    results = {
        "versions": versions(),
        "machine": machine,
        "rounds": options.rounds,
        "estimator": options.estimator,
        "setups": setups,
    }
    write_json(options.out, results)
    print(f"\nWritten to {options.out}.")


if __name__ == "__main__":
    main()
