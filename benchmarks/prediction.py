"""What a prediction of 20 samples for 1000 examples costs, in passes of the plain network."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.harness import as_json, facts, measure
from benchmarks.methods import plain
from benchmarks.networks import SETUPS
from benchmarks.peers import PACKAGES
from benchmarks.step import Options, chosen

__all__ = ["EXAMPLES", "SAMPLES", "run"]

SAMPLES, EXAMPLES = 20, 1000


def run(options: Options) -> dict[str, Any]:
    """Every method, on the perceptron and on the convolutional network."""
    setups = {name: predictions(name, options) for name in ("mlp_1024", "cnn_256")}
    return {**facts(*PACKAGES.values()), "samples": SAMPLES, "examples": EXAMPLES, "setups": setups}


def predictions(setup: str, options: Options) -> dict[str, Any]:
    """The costs of one network, by method."""
    torch.manual_seed(0)
    network = SETUPS[setup].network
    x, _ = SETUPS[setup].data(options.examples(EXAMPLES))
    base = plain(network())
    works = {name: build(network()).predict for name, build in chosen(options).items()}
    costs = measure(
        lambda: base.predict(x, 1),
        {name: (lambda predict=predict: predict(x, SAMPLES)) for name, predict in works.items()},
        rounds=max(2, options.rounds // 2),
        **options.timing,
    )
    return as_json(costs)
