"""Batches against TensorDataset and DataLoader, on data of the size of MNIST.

Both give shuffled float32 batches of the same 60000 images; they run in turns in one process, and
the ratio is the median over rounds.
"""

import statistics
from collections.abc import Iterable

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from leanbayes.lab.data import Batches, Examples, Scaling

TARGET = 20


def seconds(batches: Iterable, clock) -> float:
    start = clock()
    for _ in batches:
        pass
    return clock() - start


def compare(size: int, rounds: int, clock) -> tuple[list[float], list[float]]:
    generator = np.random.default_rng(0)
    pixels = torch.from_numpy(generator.integers(0, 256, (60_000, 1, 28, 28), dtype=np.uint8))
    labels = torch.from_numpy(generator.integers(0, 10, 60_000))
    examples = Examples(pixels, labels, Scaling(scale=255.0))
    ours = Batches(examples, size)
    theirs = DataLoader(TensorDataset(examples.x, labels), batch_size=size, shuffle=True)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        pair = seconds(ours.epoch(number), clock), seconds(theirs, clock)
        if number:  # the first round warms up
            for kept, value in zip(times, pair, strict=True):
                kept.append(value)
    return times


def show(size: int, ours: list[float], theirs: list[float]) -> None:
    """Print medians of both and of their ratios."""
    pair = [1e3 * statistics.median(times) for times in (ours, theirs)]
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    verdict = "reached" if ratio >= TARGET else "missed"
    print(
        f"batch {size}: Batches {pair[0]:.1f} ms, DataLoader {pair[1]:.1f} ms per epoch, "
        f"{ratio:.1f} × ({min(ratios):.1f} to {max(ratios):.1f}; target {TARGET} × {verdict})"
    )
