"""What a k-tied step in pure Python cannot do without: its parts, each in plain steps.

Every part does what the step does of its kind and nothing else. A step that torch computes
operation by operation costs about one plain step and the sum of them, and what lies between
operations: Python, nodes of the graph, memory that is fresh.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import leanbayes as lb
from benchmarks.harness import Work, as_json, facts, measure
from benchmarks.methods import PRIOR, plain
from benchmarks.networks import SETUPS
from benchmarks.step import Options
from leanbayes.kernels import without_native

__all__ = ["PARTS", "run"]

WIDTHS, PAIRS = (784, 400, 400, 10), 3
PARTS = {
    "random numbers": "one normal for every output",
    "skinny products": "squared inputs with the factors of variances, forward and backward",
    "passes over outputs": "root, noise, its quotient and the slope of the variance",
    "divergence": "the KL and its gradient",
}


def run(options: Options) -> dict[str, Any]:
    """Every part, on the perceptron with both batches."""
    setups = {name: _parts(name, options) for name in ("mlp_1024", "mlp_128")}
    return {**facts(), "parts": PARTS, "setups": setups}


def _parts(setup: str, options: Options) -> dict[str, Any]:
    torch.manual_seed(0)
    x, y = SETUPS[setup].data(options.examples(SETUPS[setup].batch))
    base, layers = (
        plain(SETUPS[setup].fresh()),
        [_Layer(len(x), *sizes) for sizes in pairwise(WIDTHS)],
    )
    model = lb.convert(SETUPS[setup].fresh(), lb.KTied(2), PRIOR)
    works: dict[str, Work] = {
        "random numbers": lambda: [torch.randn_like(layer.y) for layer in layers],
        "skinny products": lambda: [layer.products() for layer in layers],
        "passes over outputs": lambda: [layer.passes() for layer in layers],
        "divergence": lambda: lb.kl(model).backward(),
    }
    with without_native():
        costs = measure(lambda: base.step(x, y), works, rounds=options.rounds, **options.timing)
    return as_json(costs)


class _Layer:
    """Numbers in the shapes that one layer of a step has."""

    def __init__(self, batch: int, columns: int, rows: int) -> None:
        self.x, self.y, self.g = (torch.rand(batch, n) for n in (columns, rows, rows))
        self.p, self.q = torch.rand(PAIRS, columns), torch.rand(PAIRS, rows)
        self.variance, self.noise = torch.rand(2, batch, rows)
        self.shared = torch.rand(PAIRS, batch)

    def products(self) -> list[Tensor]:
        square, again = self.x * self.x, self.x * self.x
        forward = [self.p @ square.t(), self.shared.t() @ self.q]
        slopes = self.q @ self.g.t()
        return [*forward, slopes.t() @ self.p, slopes @ again, self.shared @ self.g]

    def passes(self) -> list[Tensor]:
        std = self.variance.sqrt()
        self.y.addcmul_(std, self.noise)
        return [std, self.noise / std, self.g * self.noise]
