"""The contracts of a posterior and a prior: spec, distribution, maps, module, KL."""

import copy
from contextlib import suppress

import torch
from torch import Tensor

from leanbayes.distributions import Moments, WeightDistribution
from leanbayes.distributions.kl import check_pair, cross_entropy, divergence
from leanbayes.ops import Conv, Linear, LinearOp
from leanbayes.parameters.learned import Learned
from leanbayes.posteriors import POSTERIORS, MeanField, Posterior
from leanbayes.priors import PRIORS, Flat, Normal, Prior, StudentT
from leanbayes.registry import Registry
from leanbayes.spec import Spec
from leanbayes.testing.assertions import (
    SAMPLES,
    assert_close,
    assert_gradients,
    assert_mean,
    seeded,
    threshold,
)


def check_posterior(
    spec: Posterior, *, out: int = 4, columns: int = 3, samples: int = SAMPLES, seed: int = 0
) -> None:
    """Check a posterior and its distribution against their contract.

    Args:
        spec: Posterior to check.
        out: Rows of the weights.
        columns: Columns of the weights.
        samples: Number of draws.
        seed: Random seed.

    Raises:
        AssertionError: If a part of the contract does not hold.
    """
    _check_spec(spec, POSTERIORS)
    with seeded(seed):
        learned = spec(torch.randn(out, columns, dtype=torch.float64), Linear())
        q = learned()
        _check_shapes(q, out, columns)
        _check_samples(q, samples)
        _check_moments(spec, samples)
        _check_maps(q, columns)
        _check_storage(learned)
        _check_module(learned, columns)


def check_prior(spec: Prior, *, samples: int = SAMPLES, seed: int = 0) -> None:
    """Check a prior and its cross-entropy against their contract.

    Args:
        spec: Prior to check.
        samples: Number of draws.
        seed: Random seed.

    Raises:
        AssertionError: If a part of the contract does not hold.
    """
    name = type(spec).__name__
    _check_spec(spec, PRIORS)
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


def _check_spec(spec: Spec, registry: Registry[type[Spec]]) -> None:
    """Check that a spec is registered, survives JSON and can be compared."""
    name, kind = type(spec).__name__, registry.kind
    assert registry.get(name) is type(spec), f"{name} needs the decorator @lb.register_{kind}"
    again = Spec.from_dict(spec.to_dict(), {**POSTERIORS, **PRIORS})
    assert again == spec, f"{spec} does not survive to_dict and from_dict"
    assert hash(again) == hash(spec), f"{spec} is not hashable; make it a frozen dataclass"


def _check_shapes(q: WeightDistribution, out: int, columns: int) -> None:
    name = type(q).__name__
    shape = (out, columns) if q.members == 1 else (q.members, out, columns)
    assert q.event_shape == (out, columns), f"{name} has event shape {tuple(q.event_shape)}"
    for what, value in (("mean", q.mean), ("variance", q.variance), ("rsample()", q.rsample())):
        assert value.shape == shape, f"{what} of {name} has shape {tuple(value.shape)}, not {shape}"
    drawn = q.rsample((2, 5)).shape
    assert drawn == (2, 5, *shape), f"rsample((2, 5)) of {name} has shape {tuple(drawn)}"


def _check_samples(q: WeightDistribution, samples: int) -> None:
    name = type(q).__name__
    w = q.rsample((samples,)).detach()
    if not q.variance.isfinite().all():
        return  # heavy tails: neither mean nor variance can be compared
    assert_mean(w, q.mean.detach(), f"mean of {name}")
    assert_mean((w - q.mean.detach()).square(), q.variance.detach(), f"variance of {name}")
    if q.members > 1:
        return
    with suppress(NotImplementedError):
        covariance, centered = q.covariance().detach(), (w - q.mean.detach()).flatten(1)
        assert_mean(_products(centered), covariance, f"covariance of {name}")
    with suppress(NotImplementedError):
        log_probs, entropy = q.log_prob(w).detach(), q.entropy().detach()
        assert_mean(-log_probs, entropy, f"entropy of {name} against its log_prob")


def _products(centered: Tensor) -> Tensor:
    """Of all pairs of entries along the last axis."""
    return centered.unsqueeze(-1) * centered.unsqueeze(-2)


def _check_moments(spec: Posterior, samples: int) -> None:
    """Local outputs have the law that random weights give, at one position."""
    for op, row in ((Linear(), (3,)), (Conv((2, 2)), (2, 2, 2))):
        weight, x = (torch.randn(n, *row, dtype=torch.float64) for n in (4, 2))
        q = spec(weight, op)()
        try:
            moments = q.moments(x, op)
        except (ValueError, NotImplementedError):
            continue  # this family draws its local noise in local_map()
        drawn = torch.stack([op(x, w) for w in q.rsample((samples,)).detach()])
        _check_output_law(drawn, moments, op, type(q).__name__)
        local = torch.stack([moments.rsample(op).detach() for _ in range(samples)])
        _check_output_law(local, moments, op, f"local {type(q).__name__}")


def _check_output_law(y: Tensor, moments: Moments, op: LinearOp, name: str) -> None:
    y = y.movedim(op.channel_dim + (op.channel_dim > 0), -1)
    mean = moments.mean.detach().expand(moments.mean.shape or y.shape[1:])
    mean = mean.movedim(op.channel_dim, -1) if moments.mean.ndim else mean
    assert_mean(y, mean, f"mean of {name} outputs")
    if moments.variance is None and moments.common is None:
        return
    covariance = moments.covariance(op).detach()
    assert_mean(_products(y - mean), covariance, f"covariance of {name} outputs")


def _check_maps(q: WeightDistribution, columns: int) -> None:
    name, batch = type(q).__name__, 2 * q.members
    x = torch.randn(batch, columns, dtype=torch.float64)
    fixed, held = q.mean_map(Linear()), q.weight_map(Linear())
    maps = {"mean": fixed, "weight": held, "local": q.local_map(Linear(), batch)}
    for kind, drawn in maps.items():
        y = drawn(x)
        assert y.shape == (batch, q.event_shape[0]), f"a {kind} map of {name} changes shape"
        assert y.isfinite().all(), f"a {kind} map of {name} gives a value that is not finite"
    assert_close(fixed(x), fixed(x), f"{name} draws noise where none is asked for")
    thinned = held(x.repeat_interleave(3, 0))[::3]
    assert_close(held(x), thinned, f"a held map of {name} remembers its batch size or draws again")


def _check_storage(learned: Learned[WeightDistribution]) -> None:
    """Each transform has an inverse, and every tensor of a posterior says what it is for."""
    name, twin = type(learned()).__name__, copy.deepcopy(learned)
    for argument, role in learned.roles.items():
        value = learned.value(argument).detach()
        twin.assign(**{argument: value})
        sentence = f"{name} does not give the {argument} it is set to"
        assert_close(twin.value(argument), value, sentence)
        assert role != "other", f"{argument} of {name} needs a role: means, scales or factors"


def _comparable_prior(q: WeightDistribution) -> Prior:
    """Return the first of some priors that this posterior has a finite KL from."""
    for prior in (Normal(1.0), StudentT(3.0)):
        try:
            check_pair(q, prior(q.rsample())())
        except ValueError:
            continue
        return prior
    return Flat()


def _check_module(learned: Learned[WeightDistribution], columns: int) -> None:
    name, twin = type(learned()).__name__, copy.deepcopy(learned)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    twin.load_state_dict(learned.state_dict())
    assert_close(twin().mean, learned().mean, f"{name} does not survive its state dict")
    q, batch = learned(), 2 * learned().members
    x = torch.randn(batch, columns, dtype=torch.float64)
    x[0] = 0.0
    loss = q.local_map(Linear(), batch)(x).square().sum()
    loss = loss + divergence(q, _comparable_prior(q)(q.rsample())())
    loss.backward()
    assert_gradients(learned.named_parameters(), name)
