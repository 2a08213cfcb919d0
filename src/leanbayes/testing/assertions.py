"""Assertions of the checks: comparisons with one failure rate, and gradients."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

FAILURE_RATE = 1e-6
"""How often a correct implementation may fail one statistical comparison."""

SAMPLES = 20_000
"""How many draws a check takes."""


def threshold(comparisons: int) -> float:
    """Return the number of standard errors that one of several comparisons may be off.

    Args:
        comparisons: Number of comparisons in a test.

    Returns:
        The number of standard errors.
    """
    return NormalDist().inv_cdf(1 - FAILURE_RATE / (2 * max(comparisons, 1)))


def assert_mean(samples: Tensor, expected: Tensor | float, what: str) -> None:
    """Assert that samples along the first axis have this mean, up to their standard error.

    Args:
        samples: Samples along the first axis.
        expected: Expected mean.
        what: Name in the error message.

    Raises:
        AssertionError: If a mean is farther off than chance allows.
    """
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
    """Seed the draws of a block; the global generator is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def assert_close(a: Any, b: Any, message: str) -> None:
    """Assert that two tensors, or tuples of them, have one shape and, up to rounding, one value."""
    first = a if isinstance(a, Tensor) else a[0]
    exact = 1e-9 if isinstance(first, Tensor) and first.dtype == torch.float64 else None
    torch.testing.assert_close(
        a, b, rtol=exact, atol=exact, msg=lambda difference: f"{message}: {difference}"
    )


def assert_gradients(parameters: Iterable[tuple[str, Tensor]], name: str) -> None:
    """Assert that each of the named parameters has a finite gradient."""
    for key, parameter in parameters:
        gradient = parameter.grad
        assert gradient is not None, f"{key} of {name} has no gradient"
        assert gradient.isfinite().all(), f"{key} of {name} has a gradient that is not finite"
