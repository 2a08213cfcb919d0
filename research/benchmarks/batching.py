"""Batches against TensorDataset and DataLoader, on data of the size of MNIST.

Both give shuffled float32 batches of the same 60000 images; they run in turns in one process, and
the ratio is the median over rounds. ``--cpu`` counts processor time, for a busy machine.

    python -m research.benchmarks.batching [--rounds 9] [--threads N] [--cpu]
"""

import argparse
import statistics
import time
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu", action="store_true", help="count processor time")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 1024])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.cpu else time.perf_counter
    print(f"{'batch':>6} {'Batches':>12} {'DataLoader':>12} {'ratio':>7}  (ms an epoch, medians)")
    for size in arguments.sizes:
        ours, theirs = compare(size, arguments.rounds, clock)
        pair = [1e3 * statistics.median(times) for times in (ours, theirs)]
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        ratio = statistics.median(ratios)
        spread = f"{min(ratios):.1f} to {max(ratios):.1f}"
        verdict = "reached" if ratio >= TARGET else "missed"
        print(
            f"{size:>6} {pair[0]:>12.1f} {pair[1]:>12.1f} {ratio:>6.1f}x  ({spread}; "
            f"target {TARGET}x {verdict})"
        )


if __name__ == "__main__":
    main()
