"""Which prior of weights factors induce: ``w = z r s`` with normal z [rank-1, eq. 3, figure 1]."""

from collections.abc import Sequence

import torch
from torch.distributions import Cauchy, Distribution, HalfCauchy, Normal


def tails(
    thresholds: Sequence[float], *, scale: float = 0.3, draws: int = 400_000, seed: int = 0
) -> dict[str, list[float]]:
    """How often a weight exceeds so many standard deviations of z, for several kinds of factors.

    Args:
        thresholds: in units of the standard deviation.
        scale: of factors around one; half-Cauchy factors have a median of one.
        draws: of the weight.
        seed: of the draws.

    Example:
        >>> found = tails([2.0], draws=20_000)
        >>> found["fixed at one"] < found["Gaussian"] < found["half-Cauchy"]
        True
    """
    one = torch.tensor(1.0)
    kinds: dict[str, Distribution | None] = {
        "fixed at one": None,
        "Gaussian": Normal(one, scale),
        "Cauchy": Cauchy(one, scale),
        "half-Cauchy": HalfCauchy(one),
    }
    found = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, kind in kinds.items():
            weight = torch.randn(draws)
            if kind is not None:
                weight = weight * kind.sample((draws,)) * kind.sample((draws,))
            found[name] = [float((weight.abs() > t).float().mean()) for t in thresholds]
    return found
