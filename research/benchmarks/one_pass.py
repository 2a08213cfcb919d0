"""What a prediction by one pass costs, in passes of the plain network over the same examples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from research.benchmarks.methods import PRIOR
from research.benchmarks.networks import SETUPS
from research.benchmarks.networks_run import FACTORS
from research.benchmarks.real_networks import NETWORKS as REAL
from research.benchmarks.step import Options
from research.measuring.harness import as_json, measure
from research.measuring.machine import facts

POSTERIORS = {
    "k-tied 2": lb.KTied(2),
    "mean field": lb.MeanField(),
    "zero mean": lb.posteriors.ZeroMean(),
    "rank-1, 1 member": lb.Rank1(1),
}
SAMPLED, SAMPLES = "k-tied 2, 20 samples", 20


NETWORKS = {
    "mlp": (SETUPS["mlp_1024"], 1000, "MLP 784-400-400-10"),
    "cnn": (SETUPS["cnn_256"], 250, "CNN"),
    "resnet": (REAL["resnet"], 128, "ResNet-20"),
    "transformer": (REAL["transformer"], 32, "transformer, 4 × 256, 64 tokens"),
    "lstm": (REAL["lstm"], 64, "LSTM, 128 units, 100 steps"),
}
"""Setup, number of examples and title of every network."""


def run(options: Options) -> dict[str, Any]:
    """Measure every posterior on every network."""
    setups = {name: costs(name, options) for name in options.chosen(NETWORKS)}
    examples = {name: options.examples(count) for name, (_, count, _) in NETWORKS.items()}
    return {**facts(), "samples": SAMPLES, "examples": examples, "setups": setups}


def costs(name: str, options: Options) -> dict[str, Any]:
    """Return the costs of one network, by method; all take turns with the plain network."""
    setup, count, _ = NETWORKS[name]
    torch.manual_seed(0)
    x, _ = setup.data(options.examples(count))
    base = setup.fresh().eval()

    def plain() -> Tensor:
        with torch.no_grad():
            return base(x)

    def one_pass(model: nn.Module) -> Tensor:
        p = lb.predict(model, x, method="moments")
        assert p.fallback is None, p.fallback
        return p.probs

    models = {
        f"{n}, one pass": lb.convert(
            setup.fresh(), q, FACTORS if n == "rank-1, 1 member" else PRIOR
        )
        for n, q in POSTERIORS.items()
    }
    works = {n: (lambda model=model: one_pass(model)) for n, model in models.items()}
    sampled = models["k-tied 2, one pass"]
    works[SAMPLED] = lambda: lb.predict(sampled, x, samples=SAMPLES).probs
    timing = {"most": 2, **options.timing, "rounds": max(2, options.rounds // 3)}
    return as_json(measure(plain, works, repeats=1 if name in REAL else 2, **timing))
