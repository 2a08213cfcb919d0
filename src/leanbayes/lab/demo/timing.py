"""Cost of a training step, measured so that a busy machine disturbs all alike."""

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

import leanbayes as lb


class Ratio(NamedTuple):
    """A relative cost: the median over rounds, and the quartiles."""

    median: float
    low: float
    high: float


def interleaved(
    steps: Mapping[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every step, round by round.

    Each turn runs a step twice and times the second, which finds the caches as training leaves
    them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            start = clock()
            step()
            seconds[name].append(clock() - start)
    return seconds


def ratio(seconds: Sequence[float], reference: Sequence[float]) -> Ratio:
    """How much dearer than the reference, from the ratios of single rounds.

    Example:
        >>> ratio([2.0, 3.0, 4.0], [1.0, 1.0, 1.0])
        Ratio(median=3.0, low=2.5, high=3.5)
    """
    ratios = [a / b for a, b in zip(seconds, reference, strict=True)]
    low, median, high = statistics.quantiles(ratios, method="inclusive")
    return Ratio(median, low, high)


def training_step(
    model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, *, data_size: int
) -> Tensor:
    """One step down the ELBO (down the cross-entropy, for a plain network); returns the loss."""
    members = lb.extend.members(model)
    loss = F.cross_entropy(model(lb.tile(x, members)), lb.tile(y, members))
    if any(True for _ in lb.extend.random_maps(model)):
        loss = lb.elbo(loss, lb.kl(model), data_size=data_size).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def versions() -> dict[str, str]:
    """The versions that a measurement depends on."""
    packages = ("leanbayes", "torch", "numpy", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
