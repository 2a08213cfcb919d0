"""Costs as ratios: two workloads take turns, and turns that something disturbed do not count.

A turn runs the plain network and then a method, each twice, and times the second run, which finds
the caches as training leaves them. Before and after it a small fixed workload, the *probe*, is
timed: where the probe is slow, the machine was busy with something else, and the turn is discarded
and taken again.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

Work = Callable[[], object]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
TOLERANCE = 0.2
"""How much slower than usual the probe may be."""
_COUNTED = "counted"
MOST_TURNS = 4
"""A method gets at most so many times the turns that are asked for."""


class Turn(NamedTuple):
    """Seconds of the plain network and of a method, and the slower of the probes around them."""

    plain: float
    method: float
    probe: float

    @property
    def ratio(self) -> float:
        """How much dearer the method was."""
        return self.method / self.plain


@dataclass(frozen=True)
class Cost:
    """A relative cost: the median over turns with its quartiles.

    Attributes:
        median: of the ratios of single turns.
        low: their first quartile.
        high: their third.
        kept: turns that count.
        discarded: turns that something disturbed.
        calm: whether enough turns were left; if not, these are the calmest of a busy machine.
        ratios: of the turns that count.
        medians: of every process, where there were several.
    """

    median: float
    low: float
    high: float
    kept: int
    discarded: int
    calm: bool = True
    ratios: Sequence[float] = field(default=(), compare=False, repr=False)
    medians: Sequence[float] = field(default=(), compare=False, repr=False)


class Probe:
    """A small fixed workload, a product of matrices and a pass over memory; returns its seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.matrix = torch.full((256, 256), 1e-3)
        self.memory = torch.ones(500_000)

    def __call__(self) -> float:
        start = self.clock()
        for _ in range(4):
            self.matrix @ self.matrix
            self.memory.mul_(1.0)
        return self.clock() - start


def measure(
    plain: Work,
    methods: Mapping[str, Work],
    *,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    probe: Callable[[], float] | None = None,
    most: int = MOST_TURNS,
    repeats: int = 2,
) -> dict[str, Cost]:
    """Return what every method costs relative to the plain network, all in turns.

    Args:
        plain: what ratios refer to.
        methods: what is measured, by name.
        rounds: turns of every method that must count.
        clock: tells seconds.
        probe: tells how fast the machine is at the moment.
        most: how many times ``rounds`` turns may be taken.
        repeats: how often work is done in a turn, of which the last is timed; 1 for work that is
            long enough to find the caches as it leaves them.
    """
    probe = probe or Probe(clock)
    order = random.Random(0)
    turns: dict[str, list[Turn]] = {name: [] for name in methods}
    for work in (plain, *methods.values(), probe):
        work()  # what happens only once is not counted
    wanted = list(methods)
    for number in range(1, most * rounds + 1):
        for name in order.sample(wanted, len(wanted)):
            turns[name].append(_turn(plain, methods[name], clock, probe, repeats))
        if number >= rounds:
            limit = _limit(turn.probe for found in turns.values() for turn in found)
            wanted = [n for n in wanted if len(undisturbed(turns[n], limit)) < rounds]
            if not wanted:
                break
    limit = _limit(turn.probe for found in turns.values() for turn in found)
    return {name: cost(found, limit) for name, found in turns.items()}


def _turn(
    plain: Work,
    method: Work,
    clock: Callable[[], float],
    probe: Callable[[], float],
    repeats: int,
) -> Turn:
    before = probe()
    seconds = []
    for work in (plain, method):
        for _ in range(repeats - 1):
            work()
        start = clock()
        work()
        seconds.append(clock() - start)
    return Turn(seconds[0], seconds[1], max(before, probe()))


def _limit(probes: Iterable[float]) -> float:
    """Return what a probe may take: a little more than its first quartile."""
    return (1 + TOLERANCE) * statistics.quantiles([*probes] * 2, method="inclusive")[0]


def undisturbed(turns: Sequence[Turn], limit: float) -> list[Turn]:
    """Return the turns whose probes were as fast as they should be."""
    return [turn for turn in turns if turn.probe <= limit]


def cost(turns: Sequence[Turn], limit: float | None = None) -> Cost:
    """Return median and quartiles of the turns that count.

    Example:
        >>> cost([Turn(1.0, 2.0, 0.1), Turn(1.0, 4.0, 0.1), Turn(1.0, 9.0, 0.7)], limit=0.2)
        Cost(median=3.0, low=2.5, high=3.5, kept=2, discarded=1, calm=True)
    """
    limit = _limit(turn.probe for turn in turns) if limit is None else limit
    kept = undisturbed(turns, limit)
    calm = len(kept) >= 2
    if not calm:
        kept = sorted(turns, key=lambda turn: turn.probe)[: max(2, len(turns) // 4)]
    ratios = [turn.ratio for turn in kept]
    low, median, high = quartiles(ratios)
    return Cost(median, low, high, len(kept), len(turns) - len(kept), calm, ratios)


def quartiles(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third.

    Example:
        >>> quartiles([2.0, 3.0, 4.0])
        (2.5, 3.0, 3.5)
    """
    low, median, high = statistics.quantiles(
        ratios if len(ratios) > 1 else [*ratios] * 2, method="inclusive"
    )
    return low, median, high


def pooled(found: Sequence[Mapping[str, Any]]) -> Cost:
    """Return the cost over several processes, whose timings vary with memory layout.

    The median is that of the medians of processes; quartiles are those of all turns.

    Example:
        >>> found = [as_json({"a": cost([Turn(1.0, ratio, 0.1)] * 2)})["a"] for ratio in (1, 2, 9)]
        >>> pooled(found).median, pooled(found).medians
        (2.0, [1.0, 2.0, 9.0])
    """
    medians = [one["median"] for one in found]
    low, _, high = quartiles([ratio for one in found for ratio in one["ratios"]])
    kept, discarded = (sum(one[name] for one in found) for name in ("kept", "discarded"))
    calm = all(one["calm"] for one in found)
    return Cost(statistics.median(medians), low, high, kept, discarded, calm, (), medians)


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the slope of a straight line through sizes and costs, both as logarithms.

    Example:
        >>> round(exponent([1, 2, 4, 8], [3, 12, 48, 192]), 6)
        2.0
    """
    x, y = ([math.log(value) for value in values] for values in (sizes, costs))
    return statistics.linear_regression(x, y).slope


def peak_memory(work: Work) -> int:
    """Return the most bytes of tensors that a piece of work holds beyond what was there before.

    The profiler knows only tensors that were made under its eyes, so the work is done twice and the
    second time counts: what it frees (the gradients of the step before) was made by the first.

    Example:
        >>> peak_memory(lambda: torch.empty(1000).sum())
        4004
    """
    work()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
        with record_function(_COUNTED):
            work()
    events = recorded.profiler.kineto_results.events()
    (begin,) = (event.start_ns() for event in events if event.name() == _COUNTED)
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.nbytes()]
    held = most = 0
    for when, change in sorted(changes, key=lambda pair: pair[0]):
        if when >= begin:
            held += change
            most = max(most, held)
    return most


def as_json(costs: Mapping[str, Cost]) -> dict[str, dict[str, Any]]:
    """Return costs by name, as they are written."""
    return {
        name: {key: value for key, value in asdict(found).items() if value not in ((), [])}
        for name, found in costs.items()
    }
