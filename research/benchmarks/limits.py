"""What noise for every output cannot do without: parts of steps and predictions, each by itself.

A part does what the whole does of its kind and nothing else. A step that torch computes operation
by operation costs about one plain step and the sum of its parts, and what lies between operations:
Python, nodes of the graph, memory that is fresh. Parts of a prediction are in plain passes; the
products of means are its own pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import leanbayes as lb
from leanbayes.kernels import Sharing, product, without_native
from leanbayes.kernels.independent import scaled_samples
from leanbayes.kernels.k_tied import k_tied_samples
from leanbayes.prediction import sampling
from leanbayes.prediction.vectorized.samples import SHARED_BY
from research.benchmarks.methods import PRIOR, plain
from research.benchmarks.networks import SETUPS
from research.benchmarks.prediction import EXAMPLES, SAMPLES
from research.benchmarks.step import Options
from research.measuring.harness import Work, as_json, measure
from research.measuring.machine import facts

WIDTHS, RANK = (784, 400, 400, 10), 2
PAIRS = RANK * (RANK + 1) // 2
ROWS = sampling._ROWS
"""Rows of all samples that a prediction runs at once."""
OF_STEPS = {
    "random numbers": "one normal for every output",
    "skinny products": "squared inputs with the factors of variances, forward and backward",
    "passes over outputs": "root, noise, its quotient and the slope of the variance",
    "divergence": "the KL and its gradient",
}
OF_PREDICTIONS = {
    "products of means": "the first layer once, the others for every sample",
    "products of variances": "the same again, where standard deviations are not tied",
    "skinny products": "in their place, where they are",
    "passes over outputs": "squares, root, noise, activation",
    "random numbers": "a normal for ten outputs",
}


def run(options: Options) -> dict[str, Any]:
    """Return every part of steps, for both batches of the perceptron, and of a prediction."""
    steps = {name: _of_steps(name, options) for name in ("mlp_1024", "mlp_128")}
    predictions = {"mlp_1024": _of_predictions("mlp_1024", options)}
    layers = _of_layers("mlp_1024", options)
    return {**facts(), "steps": steps, "predictions": predictions, "layers": layers}


def _of_steps(setup: str, options: Options) -> dict[str, Any]:
    x, y = SETUPS[setup].data(options.examples(SETUPS[setup].batch))
    base = plain(SETUPS[setup].fresh())
    model = lb.convert(SETUPS[setup].fresh(), lb.KTied(2), PRIOR)
    layers = [_Layer(len(x), *sizes) for sizes in pairwise(WIDTHS)]
    works: Mapping[str, Work] = {
        "random numbers": lambda: [torch.randn_like(layer.y) for layer in layers],
        "skinny products": lambda: [layer.skinny_step() for layer in layers],
        "passes over outputs": lambda: [layer.passes_of_step() for layer in layers],
        "divergence": lambda: lb.kl(model).backward(),
    }
    with without_native():
        costs = measure(lambda: base.step(x, y), works, rounds=options.rounds, **options.timing)
    return as_json(costs)


def _of_predictions(setup: str, options: Options) -> dict[str, Any]:
    examples, rows = _sizes(setup, options)
    first, *others = pairwise(WIDTHS)
    slices = SAMPLES * examples // rows
    once, layers = _Layer(examples, *first), [_Layer(rows, *sizes) for sizes in others]
    drawn = [_Layer(rows, 1, wide) for wide in WIDTHS[1:]]

    def numbers() -> None:
        for layer in drawn:
            torch.randn(layer.y.numel() * slices // SHARED_BY)

    def passes() -> None:
        for layer in drawn * slices:
            layer.passes()

    def repeated(name: str) -> Work:
        def work() -> None:
            getattr(once, name)()
            for _ in range(slices):
                for layer in layers:
                    getattr(layer, name)()

        return work

    works = {
        "products of means": repeated("product"),
        "products of variances": repeated("product"),
        "skinny products": repeated("skinny"),
        "passes over outputs": passes,
        "random numbers": numbers,
    }
    return _in_passes(setup, works, options)


def _of_layers(setup: str, options: Options) -> dict[str, Any]:
    """Products and noise of all layers of a prediction, without activations and without a model."""
    examples, rows = _sizes(setup, options)
    first, *others = pairwise(WIDTHS)
    sharing = Sharing(SAMPLES, rows // SAMPLES, SHARED_BY)
    layers = [_Layer(sharing.examples, *first), *(_Layer(rows, *sizes) for sizes in others)]

    def repeated(draw: Callable[[_Layer, Sharing], Tensor]) -> Work:
        def work() -> None:
            for _ in range(examples // sharing.examples):
                for layer in layers:
                    draw(layer, sharing)

        return work

    works = {
        "k-tied 2": repeated(_Layer.k_tied),
        "variance layers": repeated(_Layer.centered),
        "mean field": repeated(_Layer.free),
    }
    return _in_passes(setup, works, options)


def _sizes(setup: str, options: Options) -> tuple[int, int]:
    """Return how many examples are predicted, and how many rows of all samples run at once."""
    examples = options.examples(EXAMPLES[setup])
    return examples, min(ROWS, SAMPLES * examples)


def _in_passes(setup: str, works: Mapping[str, Work], options: Options) -> dict[str, Any]:
    """Return what works cost, in forward passes of the plain network."""
    x, _ = SETUPS[setup].data(options.examples(EXAMPLES[setup]))
    base, rounds = plain(SETUPS[setup].fresh()), max(2, options.rounds // 2)
    with torch.no_grad():
        costs = measure(lambda: base.predict(x, 1), works, rounds=rounds, **options.timing)
    return as_json(costs)


class _Layer:
    """Numbers in the shapes that one layer has."""

    def __init__(self, batch: int, columns: int, rows: int) -> None:
        self.x, self.y, self.g = (torch.rand(batch, n) for n in (columns, rows, rows))
        self.p, self.q = torch.rand(PAIRS, columns), torch.rand(PAIRS, rows)
        self.weight, self.shared = torch.rand(rows, columns), torch.rand(batch, PAIRS)
        self.variance, self.noise = torch.rand(2, batch, rows)

    def product(self) -> Tensor:
        return product(self.x, self.weight)

    def k_tied(self, sharing: Sharing) -> Tensor:
        u, v = self.q[:RANK], self.p[:RANK]
        return k_tied_samples(self.x, self.weight, u, v, self.weight[:, 0].contiguous(), sharing)

    def centered(self, sharing: Sharing) -> Tensor:
        return scaled_samples(self.x, None, self.weight, None, sharing)

    def free(self, sharing: Sharing) -> Tensor:
        return scaled_samples(self.x, self.weight, self.weight, None, sharing)

    def skinny(self) -> list[Tensor]:
        return [self.x @ self.p.t(), self.shared @ self.q]

    def skinny_step(self) -> list[Tensor]:
        square = self.x * self.x
        forward = [square @ self.p.t(), self.shared @ self.q]
        slopes = self.g @ self.q.t()
        return [*forward, slopes @ self.p, slopes.t() @ square, self.shared.t() @ self.g]

    def passes(self) -> list[Tensor]:
        std = self.variance.sqrt()
        return [torch.addcmul(self.y, std, self.noise, out=std), self.y * self.y, self.y.relu()]

    def passes_of_step(self) -> list[Tensor]:
        std = self.variance.sqrt()
        self.y.addcmul_(std, self.noise)
        return [std, self.noise / std, self.g * self.noise]
