"""Comparisons that share one failure rate, which is split over all numbers compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import NormalDist

import torch
from torch import Tensor

__all__ = ["FAILURE_RATE", "SAMPLES", "assert_close", "assert_mean", "seeded", "threshold"]

FAILURE_RATE = 1e-6
"""How often a correct implementation may fail one statistical comparison."""

SAMPLES = 20_000
"""How many draws a check takes."""


def threshold(comparisons: int) -> float:
    """How many standard errors one of so many comparisons may be off.

    Example:
        >>> round(threshold(1), 2)
        4.89
    """
    return NormalDist().inv_cdf(1 - FAILURE_RATE / (2 * max(comparisons, 1)))


def assert_mean(samples: Tensor, expected: Tensor | float, what: str) -> None:
    """Assert that samples along the first axis have this mean, up to their standard error."""
    observed = samples.mean(0)
    error = samples.std(0) / math.sqrt(len(samples))
    target = torch.as_tensor(expected, dtype=observed.dtype).expand_as(observed)
    slack = 1e-9 * (1 + target.abs())
    worst = ((observed - target).abs() / (error + slack)).max()
    allowed = threshold(observed.numel())
    assert worst <= allowed, (
        f"{what}: off by {worst:.1f} standard errors, {allowed:.1f} are allowed; "
        f"observed {observed.flatten()[:4].tolist()}, expected {target.flatten()[:4].tolist()}"
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws that depend on the seed alone; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def assert_close(a: Tensor, b: Tensor, message: str) -> None:
    """Assert that two tensors have one shape and, up to rounding, one value."""
    assert a.shape == b.shape, f"{message}: shapes {tuple(a.shape)} and {tuple(b.shape)} differ"
    assert torch.allclose(a, b, rtol=1e-9, atol=1e-9), message
