"""What a contributor runs: conformance checks of a posterior, a prior or an op.

Each check raises ``AssertionError`` with a sentence that says what is missing. Statistical
comparisons share one failure rate, :data:`FAILURE_RATE`, which is split over all numbers compared.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import NormalDist

import torch
from torch import Tensor

from leanbayes.distributions import Moments, Noise, WeightDistribution
from leanbayes.kl import check_pair, cross_entropy, divergence
from leanbayes.learned import Learned
from leanbayes.ops import Conv, Linear, LinearOp
from leanbayes.posteriors import POSTERIORS, MeanField, Posterior
from leanbayes.priors import PRIORS, Flat, Normal, Prior, StudentT
from leanbayes.spec import Spec

__all__ = ["FAILURE_RATE", "assert_mean", "check_op", "check_posterior", "check_prior", "threshold"]

FAILURE_RATE = 1e-6
"""How often a correct implementation may fail one statistical comparison."""

SAMPLES = 20_000


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
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def check_op(op: LinearOp, x: Tensor, columns: int, rows: int = 4) -> None:
    """Check that an op acts linearly and row by row, and that squares give variances.

    Args:
        op: the op.
        x: an input of it, float64 (or indices).
        columns: how many columns a matrix has for this input.
        rows: how many rows to try, a multiple of the op's groups.

    Example:
        >>> check_op(Linear(), torch.randn(5, 3, dtype=torch.float64), columns=3)
    """
    with _seeded(0):
        a = torch.randn(rows, columns, dtype=torch.float64)
        s = torch.randn(x.shape[0], op.input_channels(columns), dtype=torch.float64)
    basis = [torch.zeros_like(a).index_fill(1, torch.tensor([j]), 1.0) for j in range(columns)]
    patches = torch.stack([op(x, e) for e in basis], -1).movedim(
        op.channel_dim - (op.channel_dim < 0), -2
    )
    # patches [batch, …, rows, columns]: what each row reads
    y = op(x, a).movedim(op.channel_dim, -1)
    assert y.shape[-1] == rows, f"{op} gives {y.shape[-1]} output channels for {rows} rows"
    _close(y, (patches * a).sum(-1), "the op is not the matrix times the patch")
    half = op(x, a[: rows // 2].repeat_interleave(2, 0)).movedim(op.channel_dim, -1)
    if op.groups == 1:
        expected = y[..., : rows // 2].repeat_interleave(2, -1)
        _close(half, expected, "the op does not act row by row")
    variance = op(op.square(x), a.square()).movedim(op.channel_dim, -1)
    _close(variance, (patches.square() * a.square()).sum(-1), "square(x) does not give variances")
    _close(op.matrix(op.unmatrix(a)), a, "unmatrix does not undo matrix")
    scaled = op.scaled(x, s, a).movedim(op.channel_dim, -1)
    factor = op.column_factor(s, rows)
    explicit = torch.stack(
        [op(x[i : i + 1], a * factor[i]).movedim(op.channel_dim, -1)[0] for i in range(len(x))]
    )
    _close(scaled, explicit, "scaled(x, s, a) is not op(x ∘ s, a)")


def check_posterior(
    recipe: Posterior, *, out: int = 4, columns: int = 3, samples: int = SAMPLES, seed: int = 0
) -> None:
    """Check a posterior recipe and its distribution against their contract.

    Example:
        >>> check_posterior(MeanField())
    """
    name = type(recipe).__name__
    assert POSTERIORS.get(name) is type(recipe), f"{name} is missing in posteriors.POSTERIORS"
    _check_recipe(recipe)
    with _seeded(seed):
        learned = recipe(torch.randn(out, columns, dtype=torch.float64), Linear())
        q = learned()
        _check_shapes(q, out, columns)
        _check_samples(q, samples)
        _check_moments(recipe, samples)
        _check_maps(q, columns)
        _check_module(learned, columns)


def check_prior(recipe: Prior, *, samples: int = SAMPLES, seed: int = 0) -> None:
    """Check a prior recipe and its cross-entropy against their contract.

    Example:
        >>> check_prior(Normal(0.5))
    """
    name = type(recipe).__name__
    assert PRIORS.get(name) is type(recipe), f"{name} is missing in priors.PRIORS"
    _check_recipe(recipe)
    with _seeded(seed):
        weight = torch.randn(4, 3, dtype=torch.float64)
        prior = recipe(weight)
        q = MeanField(scale=0.3)(weight, Linear())()
        try:
            check_pair(q, prior())
        except ValueError:
            return  # a prior of positive factors: nothing to compare a weight with
        values = torch.stack([divergence(q, prior()) for _ in range(200)])
        assert values.isfinite().all(), f"KL from {name} is not finite"
        if values.requires_grad:
            values.sum().backward()
        for parameter in prior.parameters():
            gradient = parameter.grad
            assert gradient is not None, f"{name} has a parameter without a gradient"
            assert gradient.isfinite().all(), f"{name} has a gradient that is not finite"
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


def _close(a: Tensor, b: Tensor, message: str) -> None:
    assert a.shape == b.shape, f"{message}: shapes {tuple(a.shape)} and {tuple(b.shape)} differ"
    assert torch.allclose(a, b, rtol=1e-9, atol=1e-9), message


def _check_recipe(recipe: Spec) -> None:
    kinds = {**POSTERIORS, **PRIORS}
    again = Spec.from_dict(recipe.to_dict(), kinds)
    assert again == recipe, f"{recipe} does not survive to_dict and from_dict"
    assert hash(again) == hash(recipe), f"{recipe} is not hashable; make it a frozen dataclass"


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
    try:
        covariance = q.covariance().detach()
    except NotImplementedError:
        covariance = None
    if covariance is not None:
        centred = (w - q.mean.detach()).flatten(1)
        products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
        assert_mean(products, covariance, f"covariance of {name}")
    try:
        log_probs, entropy = q.log_prob(w).detach(), q.entropy().detach()
    except NotImplementedError:
        return
    assert_mean(-log_probs, entropy, f"entropy of {name} against its log_prob")


def _check_moments(recipe: Posterior, samples: int) -> None:
    """Local outputs have the law that random weights give, at one position."""
    cases = (
        (Linear(), torch.randn(4, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)),
        (
            Conv((2, 2)),
            torch.randn(4, 2, 2, 2, dtype=torch.float64),
            torch.randn(2, 2, 2, 2, dtype=torch.float64),
        ),
    )
    for op, weight, x in cases:
        q = recipe(weight, op)()
        try:
            moments = q.moments(x, op)
        except (ValueError, NotImplementedError):
            continue  # this family draws its local noise in map()
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
    centred = y - mean
    products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
    assert_mean(products, moments.covariance(op).detach(), f"covariance of {name} outputs")


def _check_maps(q: WeightDistribution, columns: int) -> None:
    name, batch = type(q).__name__, 2 * q.members
    x = torch.randn(batch, columns, dtype=torch.float64)
    for noise in Noise:
        y = q.map(Linear(), batch, noise)(x)
        assert y.shape == (batch, q.event_shape[0]), f"a {noise.value} map of {name} changes shape"
        assert y.isfinite().all(), f"a {noise.value} map of {name} gives a value that is not finite"
    fixed = q.map(Linear(), None, Noise.NONE)
    _close(fixed(x), fixed(x), f"{name} draws noise where none is asked for")
    held = q.map(Linear(), None, Noise.SHARED)
    wide = x.repeat_interleave(3, 0)
    _close(
        held(x), held(wide)[::3], f"a held map of {name} remembers its batch size or draws again"
    )


def _comparable_prior(q: WeightDistribution) -> Prior:
    """The first of some priors that this posterior has a finite KL from."""
    for prior in (Normal(1.0), StudentT(3.0)):
        try:
            check_pair(q, prior(q.rsample())())
        except ValueError:
            continue
        return prior
    return Flat()


def _check_module(learned: Learned[WeightDistribution], columns: int) -> None:
    name = type(learned()).__name__
    learned(), copy.deepcopy(learned)
    twin = copy.deepcopy(learned)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    twin.load_state_dict(learned.state_dict())
    _close(twin().mean, learned().mean, f"{name} does not survive its state dict")
    q, batch = learned(), 2 * learned().members
    x = torch.randn(batch, columns, dtype=torch.float64)
    x[0] = 0.0
    loss = q.map(Linear(), batch, Noise.LOCAL)(x).square().sum()
    loss = loss + divergence(q, _comparable_prior(q)(q.rsample())())
    loss.backward()
    for parameter_name, parameter in learned.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, f"{name}.{parameter_name} has no gradient"
        assert gradient.isfinite().all(), (
            f"{name}.{parameter_name} has a gradient that is not finite"
        )
