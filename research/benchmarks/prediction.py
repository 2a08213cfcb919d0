"""What a prediction of 20 samples costs, in passes of the plain network over the same examples."""

from __future__ import annotations

from typing import Any

import torch

from research.benchmarks.methods import plain
from research.benchmarks.networks import SETUPS
from research.benchmarks.peers import PACKAGES
from research.benchmarks.step import Options, chosen
from research.measuring.harness import as_json, measure
from research.measuring.machine import facts

SAMPLES = 20
EXAMPLES = {"mlp_1024": 1000, "cnn_256": 250}
"""In one batch, by network; convolutions take long."""
SHARE = {"mlp_1024": 3, "cnn_256": 6}
"""One turn for so many rounds, by network: 20 samples take as long as many steps."""


def run(options: Options) -> dict[str, Any]:
    """Return every method, on the perceptron and on the convolutional network."""
    setups = {name: predictions(name, options) for name in options.chosen(EXAMPLES)}
    examples = {name: options.examples(count) for name, count in EXAMPLES.items()}
    known = facts(*PACKAGES.values())
    return {**known, "samples": SAMPLES, "examples": examples, "setups": setups}


def predictions(setup: str, options: Options) -> dict[str, Any]:
    """Return the costs of one network, by method."""
    torch.manual_seed(0)
    fresh = SETUPS[setup].fresh
    x, _ = SETUPS[setup].data(options.examples(EXAMPLES[setup]))
    base = plain(fresh())
    works = {name: build(fresh()).predict for name, build in chosen(options).items()}
    costs = measure(
        lambda: base.predict(x, 1),
        {name: (lambda predict=predict: predict(x, SAMPLES)) for name, predict in works.items()},
        rounds=max(2, options.rounds // SHARE[setup]),
        **options.timing,
    )
    return as_json(costs)
