"""Log likelihoods by importance sampling, in a stream, with their standard errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes.errors import require_count
from leanbayes.lab.data import Batches, Examples
from leanbayes.metrics import Score, average
from research.papers.matrix_normal.vae.network import Vae

_ROWS = 1000
"""Latent vectors that are decoded at once: more gain nothing, and leave the cache."""
_IMAGES = 10


class Importance(NamedTuple):
    """What importance sampling says about each example.

    Attributes:
        log_likelihood: the log of the mean weight. On average it is a little too low, by about
            half its squared standard error.
        error: the standard error of that logarithm, from the spread of the weights.
        bound: the mean log weight, which estimates the evidence lower bound; never above the
            log likelihood.
        effective: how many equal weights would be worth as much as these.
    """

    log_likelihood: Tensor
    error: Tensor
    bound: Tensor
    effective: Tensor


def importance_sampled(
    log_weights: Callable[[int], Tensor], samples: int = 5000, *, at_once: int = 100
) -> Importance:
    """Estimate log likelihoods from log weights ``log p(x, z) − log q(z | x)``, z drawn from q.

    Weights are summed as they come, relative to the largest so far: memory does not grow with
    the number of samples, and nothing overflows.

    Example:
        >>> estimate = importance_sampled(lambda count: torch.full((count, 2), -90.0), 10)
        >>> estimate.log_likelihood.tolist(), estimate.error.tolist(), estimate.effective.tolist()
        ([-90.0, -90.0], [0.0, 0.0], [10.0, 10.0])
    """
    require_count("samples", samples, 2)
    require_count("at_once", at_once, 1)
    sums = _Sums()
    for first in range(0, samples, at_once):
        sums.add(log_weights(min(at_once, samples - first)).double())
    return sums.result(samples)


class _Sums:
    """Sums of log weights, of weights and of their squares, in units of the largest so far."""

    def __init__(self) -> None:
        self.top = torch.tensor(torch.finfo(torch.float64).min, dtype=torch.float64)
        self.logs = self.first = self.second = torch.zeros((), dtype=torch.float64)

    def add(self, log_weights: Tensor) -> None:
        top = torch.maximum(log_weights.amax(0), self.top)
        old, new = (self.top - top).exp(), (log_weights - top).exp()
        self.logs = self.logs + log_weights.sum(0)
        self.first = self.first * old + new.sum(0)
        self.second = self.second * old.square() + new.square().sum(0)
        self.top = top

    def result(self, samples: int) -> Importance:
        effective = self.first.square() / self.second
        variance = (samples / effective - 1).clamp_min(0.0) / (samples - 1)
        value = self.top + (self.first / samples).log()
        return Importance(value, variance.sqrt(), self.logs / samples, effective)


@dataclass(frozen=True)
class LogLikelihood:
    """The log likelihood of images under an auto-encoder.

    Attributes:
        score: the average over images, with its standard error over the images.
        sampling_error: the standard error of that average that importance sampling leaves: how
            far it would move with other latent vectors for the same images.
        bound: the average evidence lower bound, from the same latent vectors.
        effective: the average over images of how many equal weights would be worth as much.
        images: how many there were.
        samples: how many latent vectors were drawn for each.
    """

    score: Score
    sampling_error: float
    bound: Score
    effective: float
    images: int
    samples: int

    @staticmethod
    def merged(parts: Sequence[LogLikelihood]) -> LogLikelihood:
        """Return the log likelihood of the images of several parts together."""
        counts = torch.tensor([part.images for part in parts], dtype=torch.float64)
        images, samples = int(counts.sum()), parts[0].samples
        errors = counts * torch.tensor([part.sampling_error for part in parts])
        effective = torch.tensor([part.effective for part in parts]).double() @ counts
        return LogLikelihood(
            score=_pooled([part.score for part in parts], counts),
            sampling_error=float(errors.norm()) / images,
            bound=_pooled([part.bound for part in parts], counts),
            effective=float(effective) / images,
            images=images,
            samples=samples,
        )


def _pooled(scores: Sequence[Score], counts: Tensor) -> Score:
    """Return the average of all examples from averages of parts, with its standard error."""
    means, errors = torch.tensor(scores, dtype=torch.float64).T
    shares = counts / counts.sum()
    mean = shares @ means
    variance = shares @ (counts * errors.square() + (means - mean).square())
    return Score(float(mean), float((variance / counts.sum()).sqrt()))


@torch.no_grad()
def log_likelihood(
    model: Vae, images: Examples, *, samples: int = 5000, seed: int = 0
) -> LogLikelihood:
    """Return the average of ``log p(x)`` over images, by importance sampling from the encoder."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parts = [_one_batch(model, x, samples) for x, _ in Batches(images, _IMAGES).in_order()]
    values, errors, bounds, effective = (torch.cat(part) for part in zip(*parts, strict=True))
    return LogLikelihood(
        score=average(values),
        sampling_error=float(errors.square().sum().sqrt()) / len(values),
        bound=average(bounds),
        effective=float(effective.mean()),
        images=len(values),
        samples=samples,
    )


def _one_batch(model: Vae, x: Tensor, samples: int) -> Importance:
    return importance_sampled(
        lambda count: model.log_weights(x, count), samples, at_once=max(1, _ROWS // len(x))
    )
