"""How costs and memory grow with width, depth, rank, members, samples and batch.

At every size the plain network of that size is what ratios refer to. One fixed plain step, the
*yardstick*, is measured with them, so that costs of different sizes can be compared too: a growth
is a cost in yardsticks, and its exponent the slope against the size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

import leanbayes as lb
from research.benchmarks.methods import Builder, Works, mc_dropout, ours, plain
from research.benchmarks.networks import mlp
from research.benchmarks.step import Options
from research.measuring.harness import Work, exponent, measure, peak_memory
from research.measuring.machine import facts

TIED, FREE = ours(lb.KTied(2)), ours(lb.MeanField(), estimator=lb.estimators.local)
USUAL: Mapping[str, Builder] = {"k-tied 2": TIED, "mean field": FREE, "MC dropout": mc_dropout}


@dataclass(frozen=True)
class Axis:
    """One thing that grows.

    Attributes:
        title: how a plot names it.
        sizes: the values that it takes; ``--quick`` tries the first two.
        widths: of the network, by size.
        batch: examples in a step (or in a prediction), by size.
        methods: what is measured, by size.
        samples: of a prediction, by size; ``None`` where a training step is measured.
    """

    title: str
    sizes: tuple[int, ...]
    widths: Callable[[int], tuple[int, ...]] = lambda _: (784, 400, 400, 10)
    batch: Callable[[int], int] = lambda _: 256
    methods: Callable[[int], Mapping[str, Builder]] = lambda _: USUAL
    samples: Callable[[int], int] | None = None


AXES = {
    "width": Axis(
        "units of every layer", (256, 512, 1024, 2048, 4096), widths=lambda n: (n, n, n, 10)
    ),
    "depth": Axis("layers of 512 units", (1, 2, 4, 8, 16, 32), widths=lambda n: (512,) * n + (10,)),
    "rank": Axis(
        "rank of tied scales",
        (1, 2, 4, 8, 16),
        methods=lambda n: {"k-tied": ours(lb.KTied(n))},
    ),
    "members": Axis(
        "members of a rank-1 mixture, each with the whole batch",
        (1, 2, 4, 8, 16),
        batch=lambda _: 128,
        methods=lambda n: {"rank-1": ours(lb.Rank1(n), lb.priors.Normal(0.1, loc=1.0))},
    ),
    "batch": Axis("examples in a step", (32, 128, 512, 2048, 8192), batch=lambda n: n),
    "samples": Axis(
        "samples of a prediction for 100 examples",
        (1, 4, 16, 64, 256),
        batch=lambda _: 100,
        samples=lambda n: n,
    ),
}


def run(options: Options) -> dict[str, Any]:
    """Return all axes."""
    return {**facts(), "axes": {name: along(axis, options) for name, axis in AXES.items()}}


def along(axis: Axis, options: Options) -> dict[str, Any]:
    """Return costs at every size of one axis, and how they grow."""
    sizes = axis.sizes[:2] if options.quick else axis.sizes
    points = [point(axis, size, options) for size in sizes]
    names = points[0]["growth"]
    return {
        "title": axis.title,
        "sizes": sizes,
        "points": points,
        "exponents": {
            name: exponent(sizes[-3:], [p["growth"][name] for p in points][-3:]) for name in names
        },
    }


def point(axis: Axis, size: int, options: Options) -> dict[str, Any]:
    """Return one size: ratios to the plain network, costs in yardsticks, and memory."""
    torch.manual_seed(0)
    batch = axis.batch(size)
    x, y = torch.rand(batch, axis.widths(size)[0]), torch.randint(10, (batch,))
    builders = {"plain": plain, **axis.methods(size)}
    built = {name: build(mlp(axis.widths(size))) for name, build in builders.items()}
    samples = axis.samples(size) if axis.samples else None
    works = {name: _work(each, x, y, samples) for name, each in built.items()}
    base = works.pop("plain")
    costs = measure(
        base,
        {**works, "yardstick": _yardstick()},
        rounds=max(2, options.rounds // 3),
        **options.timing,
    )
    unit = costs.pop("yardstick").median
    return {
        "ratios": {name: asdict(found) for name, found in costs.items()},
        "growth": {"plain": 1 / unit, **{n: found.median / unit for n, found in costs.items()}},
        "megabytes": {
            name: (_standing(built[name]) + peak_memory(work)) / 1e6
            for name, work in {"plain": base, **works}.items()
        },
    }


def _work(works: Works, x: Tensor, y: Tensor, samples: int | None) -> Work:
    if samples is None:
        return lambda: works.step(x, y)
    return lambda: works.predict(x, samples)


def _yardstick() -> Work:
    works = plain(mlp((256, 256, 256, 10)))
    x, y = torch.rand(256, 256), torch.randint(10, (256,))
    return lambda: works.step(x, y)


def _standing(works: Works) -> int:
    """Return bytes of parameters and gradients, and of the optimizer's state."""
    state = works.optimizer.state.values() if works.optimizer else ()
    moments = [value for kept in state for value in kept.values() if isinstance(value, Tensor)]
    gradients = [p.grad for p in works.model.parameters() if p.grad is not None]
    tensors = [*works.model.parameters(), *works.model.buffers(), *gradients, *moments]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
