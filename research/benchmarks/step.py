"""What a training step costs: forward pass, KL, backward pass and update, against the plain one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from research.benchmarks.methods import COMPILED, METHODS, Builder, plain
from research.benchmarks.networks import SETUPS, Setup
from research.benchmarks.peers import PACKAGES, available
from research.measuring.harness import CLOCKS, as_json, measure
from research.measuring.machine import facts


@dataclass(frozen=True)
class Options:
    """How a benchmark is run.

    Attributes:
        rounds: turns of every method that must count.
        clock: ``wall``, or ``cpu`` for a busy machine with one thread.
        quick: smaller sizes, to try it out.
        peers: whether to measure other libraries instead of our methods.
        part: what of the benchmark to measure; all of it if empty.
    """

    rounds: int = 12
    clock: str = "wall"
    quick: bool = False
    peers: bool = False
    part: str = ""

    @property
    def timing(self) -> dict[str, Any]:
        """For :func:`measure`; a trial takes no turn again."""
        return {"clock": CLOCKS[self.clock], **({"most": 1} if self.quick else {})}

    def chosen(self, parts: Iterable[str]) -> tuple[str, ...]:
        """Return the parts to measure."""
        return (self.part,) if self.part else tuple(parts)

    def examples(self, count: int) -> int:
        """So many, or few in a trial."""
        return min(count, 32) if self.quick else count


HEAD_TO_HEAD = ("k-tied 2, auto",)
"""Measured with the peers too, so that both stand in one process."""


def chosen(options: Options, **more: Builder) -> dict[str, Builder]:
    """Return our methods and more of them, or the peers with one of ours."""
    if not options.peers:
        return {**METHODS, **more}
    return {**available(), **{name: METHODS[name] for name in HEAD_TO_HEAD}}


def run(options: Options) -> dict[str, Any]:
    """Return every method on every network."""
    methods = chosen(options, **({} if options.quick else COMPILED))
    setups = {name: steps(SETUPS[name], methods, options) for name in options.chosen(SETUPS)}
    return {**facts(*PACKAGES.values()), "setups": setups}


def steps(setup: Setup, methods: Mapping[str, Builder], options: Options) -> dict[str, Any]:
    """Return the costs of one network, by method."""
    torch.manual_seed(0)
    x, y = setup.data(options.examples(setup.batch))
    base = plain(setup.fresh())
    works = {name: build(setup.fresh()).step for name, build in methods.items()}
    costs = measure(
        lambda: base.step(x, y),
        {name: (lambda step=step: step(x, y)) for name, step in works.items()},
        rounds=options.rounds,
        **options.timing,
    )
    return as_json(costs)
