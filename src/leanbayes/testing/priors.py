"""The contract of a prior."""

from __future__ import annotations

import torch

from leanbayes.kl import check_pair, cross_entropy, divergence
from leanbayes.ops import Linear
from leanbayes.posteriors import MeanField
from leanbayes.priors import PRIORS, Prior
from leanbayes.testing.assertions import (
    SAMPLES,
    assert_gradients,
    check_spec,
    seeded,
    threshold,
)

__all__ = ["check_prior"]


def check_prior(spec: Prior, *, samples: int = SAMPLES, seed: int = 0) -> None:
    """Check a prior and its cross-entropy against their contract.

    Example:
        >>> from leanbayes import Normal
        >>> check_prior(Normal(0.5))
    """
    name = type(spec).__name__
    check_spec(spec, PRIORS)
    with seeded(seed):
        weight = torch.randn(4, 3, dtype=torch.float64)
        prior = spec(weight)
        q = MeanField(scale=0.3)(weight, Linear())()
        try:
            check_pair(q, prior())
        except ValueError:
            return  # a prior of positive factors: nothing to compare a weight with
        values = torch.stack([divergence(q, prior()) for _ in range(200)])
        assert values.isfinite().all(), f"KL from {name} is not finite"
        if values.requires_grad:
            values.sum().backward()
        assert_gradients(prior.named_parameters(), name)
        try:
            log_probs = prior().log_prob(q.rsample((samples,)))
        except NotImplementedError:
            return  # a prior that depends on its posterior has no density of its own
        repeated = torch.stack([cross_entropy(prior(), q) for _ in range(200)])
        # both sides may be Monte Carlo: their difference has the errors of both
        difference = repeated.mean(0) + log_probs.mean(0)
        error = (log_probs.var(0) / samples + repeated.var(0) / len(repeated)).sqrt()
        worst = (difference.abs() / (error + 1e-9)).max()
        slack = 0.01 if name == "LogUniform" else 0.0  # a published approximation
        assert worst <= threshold(12) or bool((difference.abs() <= slack + 5 * error).all()), (
            f"cross_entropy of {name} does not agree with its log_prob"
        )
