"""The contract of a likelihood: its distribution, what is said of it, its file, its gradients."""

import copy
import json
import math

import torch
from torch import Tensor

from leanbayes.likelihoods import LIKELIHOODS, Likelihood
from leanbayes.testing.assertions import (
    SAMPLES,
    assert_close,
    assert_gradients,
    assert_mean,
    seeded,
    threshold,
)

_LEVELS = (0.05, 0.5, 0.9)


def check_likelihood(
    likelihood: Likelihood, outputs: Tensor, y: Tensor, *, samples: int = SAMPLES, seed: int = 0
) -> None:
    """Check a likelihood and its predictions against its contract.

    Means, variances and distribution functions are compared with draws, so the noise needs four
    finite moments where it has a variance at all.

    Args:
        likelihood: the likelihood, registered by :func:`~leanbayes.extend.register_likelihood`.
        outputs: some outputs of a network, ``[samples, batch, …]``, float64.
        y: possible targets, ``[batch, …]``.
        samples: number of draws to compare with.
        seed: seed of the draws.

    Raises:
        AssertionError: If a part of the contract does not hold.
    """
    with seeded(seed):
        likelihood = copy.deepcopy(likelihood).to(outputs.dtype)
        with torch.no_grad():
            _check_file(likelihood, outputs, y)
            _check_log_prob(likelihood, outputs, y)
            _check_draws(likelihood, outputs, y, samples)
            _check_quantiles(likelihood, outputs)
            _check_classes(likelihood, outputs)
            _check_metrics(likelihood, outputs, y)
        _check_gradients(likelihood, outputs, y)


def _check_file(likelihood: Likelihood, outputs: Tensor, y: Tensor) -> None:
    name = type(likelihood).__name__
    assert type(likelihood) in LIKELIHOODS.values(), f"{name} is missing in LIKELIHOODS"
    described = json.loads(json.dumps(likelihood.to_dict()))
    again = Likelihood.from_dict(described).to(outputs.dtype)
    assert type(again) is type(likelihood), f"{name} comes back as {type(again).__name__}"
    assert json.loads(json.dumps(again.to_dict())) == described, f"{name} forgets an argument"
    again.load_state_dict(likelihood.state_dict())
    value, expected = again.log_prob(outputs, y), likelihood.log_prob(outputs, y)
    assert_close(value, expected, f"{name} does not survive")


def _check_log_prob(likelihood: Likelihood, outputs: Tensor, y: Tensor) -> None:
    name, law = type(likelihood).__name__, likelihood.distribution(outputs)
    value, every = likelihood.log_prob(outputs, y), law.log_prob(likelihood.targets(y, outputs))
    summed = every.reshape(*outputs.shape[:2], -1).sum(-1)
    assert_close(value, summed, f"log_prob of {name} is not that of its distribution")
    assert_close(likelihood.nll(outputs, y), -summed.mean(), f"nll of {name} is not a mean")


def _check_draws(likelihood: Likelihood, outputs: Tensor, y: Tensor, samples: int) -> None:
    """Averages of draws over the mixture are what the likelihood says of it."""
    name, answers = type(likelihood).__name__, likelihood.answers(outputs)
    many = outputs.expand(samples, *outputs.shape).flatten(0, 1)
    drawn = likelihood.sample(many).unflatten(0, (samples, len(outputs)))
    shape = tuple(drawn.shape[2:])
    assert shape == tuple(y.shape), f"sample of {name} has shape {shape}, not {tuple(y.shape)}"
    if "mean" in answers:
        mean, variance = likelihood.mean(outputs), likelihood.variance(outputs)
        if bool(variance.isfinite().all()):
            assert_mean(drawn.mean(1), mean, f"mean of {name}")
            assert_mean((drawn - mean).square().mean(1), variance, f"variance of {name}")
    if "cdf" in answers:
        _check_share((drawn <= y).flatten(0, 1), likelihood.cdf(outputs, y), f"cdf of {name}")


def _check_share(hits: Tensor, expected: Tensor, what: str) -> None:
    """By Bernstein's inequality, which also holds where hits or misses are rare."""
    allowed, count = threshold(expected.numel()), len(hits)
    error = (expected * (1 - expected) / count).clamp_min(0).sqrt()
    difference = (hits.to(expected.dtype).mean(0) - expected).abs()
    bound = allowed * error + allowed**2 / (3 * count)
    assert bool((difference <= bound).all()), f"{what} is off by {float(difference.max()):.3g}"


def _check_quantiles(likelihood: Likelihood, outputs: Tensor) -> None:
    if "quantiles" not in likelihood.answers(outputs):
        return
    name, support = type(likelihood).__name__, likelihood.distribution(outputs).support
    assert support is not None, f"the distribution of {name} has no support"
    for level, value in zip(_LEVELS, likelihood.quantiles(outputs, _LEVELS), strict=True):
        reached = likelihood.cdf(outputs, value)
        assert bool((reached >= level - 1e-6).all()), f"quantile {level} of {name} is too low"
        before = likelihood.cdf(outputs, value - 1) if support.is_discrete else reached - 1e-6
        assert bool((before <= level).all()), f"quantile {level} of {name} is too high"


def _check_classes(likelihood: Likelihood, outputs: Tensor) -> None:
    if "probs" not in likelihood.answers(outputs):
        return
    name, law = type(likelihood).__name__, likelihood.distribution(outputs)
    expected = [law.log_prob(value) for value in law.enumerate_support(expand=False)]
    log_probs = likelihood.class_log_probs(outputs).unbind(-1)
    assert_close(log_probs, expected, f"class probabilities of {name} are not its distribution's")
    total = torch.stack(log_probs).exp().sum(0)
    assert_close(total, torch.ones_like(total), f"probabilities of {name} do not add up to one")


def _check_metrics(likelihood: Likelihood, outputs: Tensor, y: Tensor) -> None:
    name, values = type(likelihood).__name__, likelihood.metrics(outputs, y)
    assert "nll" in values, f"metrics of {name} have no 'nll'"
    for key, score in values.items():
        finite = math.isfinite(score.value) and math.isfinite(score.error)
        assert finite, f"metric {key!r} of {name} is not finite: {score}"


def _check_gradients(likelihood: Likelihood, outputs: Tensor, y: Tensor) -> None:
    name, leaf = type(likelihood).__name__, outputs.detach().clone().requires_grad_()
    likelihood.nll(leaf, y).backward()
    assert_gradients([("outputs", leaf), *likelihood.named_parameters()], name)
