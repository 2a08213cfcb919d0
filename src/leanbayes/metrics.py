"""Metrics, with their standard errors over examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from leanbayes.errors import require

__all__ = [
    "Bins",
    "Score",
    "accuracy",
    "auroc",
    "average",
    "average_precision",
    "bootstrap",
    "brier",
    "calibration_bins",
    "calibration_error",
    "disagreement",
    "disagreements",
    "diversity",
    "kl_diversity",
    "member_log_probs",
    "nll",
    "rejection_curve",
]


class Score(NamedTuple):
    """An average over examples and its standard error.

    Attributes:
        value: the average.
        error: the standard deviation over examples divided by √examples; of an accuracy ``p``
            it is ``√(p (1 − p) / examples)``.

    Example:
        >>> print(Score(0.9759, 0.0048))
        0.9759 ± 0.0048
    """

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.error:.4f}"


def average(values: Tensor) -> Score:
    """The average of one number per example, with its standard error.

    Args:
        values: ``[examples]``, such as minus ``Prediction.log_likelihood(y)``.

    Example:
        >>> average(torch.tensor([0.0, 1.0, 1.0, 0.0]))
        Score(value=0.5, error=0.25)
    """
    require(
        values.ndim == 1 and len(values) > 0,
        f"values have shape {tuple(values.shape)}; give one number for each of several examples",
    )
    values = values.detach().double()
    error = values.std(correction=0) / math.sqrt(len(values))
    return Score(float(values.mean()), float(error))


def bootstrap(
    metric: Callable[..., Any],
    *values: Tensor,
    strata: Tensor | None = None,
    draws: int = 100,
    seed: int = 0,
) -> Score:
    """Any metric of a whole test set, with its spread over test sets drawn from this one.

    Args:
        metric: a function of tensors that gives one number.
        values: its arguments, each with one entry an example.
        strata: classes ``[examples]`` whose sizes every drawn test set keeps.
        draws: how many test sets.
        seed: of the draws.

    Example:
        >>> bootstrap(torch.median, torch.ones(10))
        Score(value=1.0, error=0.0)
    """
    require(draws >= 2, f"draws is {draws}; a spread needs at least 2")
    require(
        len(values) > 0 and all(len(v) == len(values[0]) > 0 for v in values),
        "give tensors with one entry for each of several examples, all equally long",
    )
    classes = torch.zeros(len(values[0])) if strata is None else strata.cpu()
    groups = [(classes == c).nonzero().squeeze(-1) for c in classes.unique()]
    generator = Generator().manual_seed(seed)
    drawn = []
    for _ in range(draws):
        index = torch.cat([g[torch.randint(len(g), g.shape, generator=generator)] for g in groups])
        drawn.append(float(metric(*(v[index.to(v.device)] for v in values))))
    error = torch.tensor(drawn, dtype=torch.float64).std()
    return Score(float(metric(*values)), float(error))


def nll(log_probs: Tensor, y: Tensor) -> Score:
    """The negative log likelihood, in nats.

    Args:
        log_probs: log probabilities ``[examples, classes]``, such as ``Prediction.log_probs``.
        y: the true classes ``[examples]``.

    Example:
        >>> nll(torch.full((2, 4), 0.25).log(), torch.tensor([3, 0]))
        Score(value=1.3862943649291992, error=0.0)
    """
    _check(log_probs, y)
    return average(-log_probs.gather(-1, y.unsqueeze(-1)).squeeze(-1))


def brier(probs: Tensor, y: Tensor) -> Score:
    """The Brier score ``Σ_c (p_c − [c = y])²``: 0 is perfect, 2 is surely wrong.

    Published tables [k-tied] print it without its constant, as ``Σ p² − 2 p_y``: one less.

    Args:
        probs: probabilities ``[examples, classes]``.
        y: the true classes ``[examples]``.

    Example:
        >>> brier(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 1]))
        Score(value=1.25, error=0.5303300858899106)
    """
    _check(probs, y)
    truth = torch.nn.functional.one_hot(y, probs.shape[-1])
    return average((probs - truth).square().sum(-1))


def accuracy(probs: Tensor, y: Tensor) -> Score:
    """The share of examples whose most probable class is the true one.

    Args:
        probs: probabilities (or any scores) ``[examples, classes]``.
        y: the true classes ``[examples]``.

    Example:
        >>> accuracy(torch.eye(4), torch.tensor([0, 1, 2, 0]))
        Score(value=0.75, error=0.21650635094610965)
    """
    _check(probs, y)
    return average((probs.argmax(-1) == y).double())


class Bins(NamedTuple):
    """Examples by confidence, in equal bins between 0 and 1.

    Attributes:
        confidence: the average of every bin.
        accuracy: the share of right predictions in it.
        examples: how many there are.
        calibration_error: the expected calibration error: the average gap between the two, weighted
            by examples, where those of confidence 1 are a bin of their own.
    """

    confidence: Tensor
    accuracy: Tensor
    examples: Tensor
    calibration_error: float


def calibration_bins(confidence: Tensor, right: Tensor, bins: int = 15) -> Bins:
    """Sort examples into bins ``[i / bins, (i + 1) / bins)`` of confidence; the last has 1 as well.

    Args:
        confidence: the probability of the predicted class, ``[examples]``.
        right: whether it is the true one.
        bins: how many bins.

    Example:
        >>> calibration_bins(torch.tensor([0.5, 0.75]), torch.tensor([True, False]), 2).accuracy
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    edges = torch.linspace(0, 1, bins + 1, dtype=confidence.dtype, device=confidence.device)
    index = torch.bucketize(confidence.contiguous(), edges, right=True) - 1
    rows = torch.stack([confidence.double(), right.double(), torch.ones_like(index).double()])
    sums = rows.new_zeros(3, bins + 1).index_add(1, index, rows)
    error = (sums[0] - sums[1]).abs().sum() / sums[2].sum()
    sums = torch.cat([sums[:, : bins - 1], sums[:, bins - 1 :].sum(1, keepdim=True)], 1)
    confidences, rights, count = sums
    held = count.clamp_min(1)
    return Bins(confidences / held, rights / held, count, float(error))


def calibration_error(probs: Tensor, y: Tensor, bins: int = 15) -> float:
    """The expected calibration error of the most probable class.

    Args:
        probs: probabilities ``[examples, classes]``.
        y: the true classes ``[examples]``.
        bins: how many equal bins of confidence.

    Example:
        >>> calibration_error(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
        0.25
    """
    _check(probs, y)
    confidence, labels = probs.max(-1)
    return calibration_bins(confidence, labels == y, bins).calibration_error


def auroc(scores: Tensor, positive: Tensor) -> float:
    """The area under the ROC curve: how probably a positive has the higher score; ties count half.

    Args:
        scores: ``[examples]``, such as entropies.
        positive: whether an example is one of those that should have more of it.

    Example:
        >>> auroc(torch.tensor([0.1, 0.2, 0.3, 0.15]), torch.tensor([0, 0, 1, 1]))
        0.75
    """
    chosen = _positives(scores, positive)
    negatives = scores[~chosen].sort().values
    below, reached = (
        torch.searchsorted(negatives, scores[chosen], right=right).double().mean()
        for right in (False, True)
    )
    return float((below + reached) / (2 * len(negatives)))


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """The area under the precision-recall curve, as a sum over distinct scores.

    Args:
        scores: ``[examples]``.
        positive: whether an example is one of those that should have more of it.

    Example:
        >>> average_precision(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([1, 0, 1]))
        0.8333333333333333
    """
    chosen = _positives(scores, positive)
    ordered, order = scores.sort(descending=True)
    last = torch.ones_like(chosen)
    last[:-1] = ordered[1:] != ordered[:-1]
    seen = torch.arange(1, len(scores) + 1, dtype=torch.float64, device=scores.device)[last]
    hits = chosen[order].double().cumsum(0)[last]
    gained = hits.diff(prepend=hits.new_zeros(1))
    return float((gained * hits / seen).sum() / hits[-1])


def _positives(scores: Tensor, positive: Tensor) -> Tensor:
    require(
        scores.ndim == 1 and positive.shape == scores.shape,
        f"scores have shape {tuple(scores.shape)} and outcomes {tuple(positive.shape)}; "
        "give one of each for every example",
    )
    chosen = positive.bool()
    require(
        bool(chosen.any()) and not bool(chosen.all()),
        "all examples are of one kind; an area under a curve needs both",
    )
    return chosen


def disagreement(log_probs: Tensor) -> Score:
    """How often two samples (or members) predict different classes, averaged over all pairs.

    Args:
        log_probs: of every sample, ``[samples, examples, classes]``, as
            ``Prediction.sample_log_probs``; probabilities or other scores do as well.

    Example:
        >>> disagreement(torch.eye(2).repeat(1, 3, 1).view(3, 2, 2))
        Score(value=0.0, error=0.0)
    """
    return average(disagreements(log_probs))


def member_log_probs(log_probs: Tensor, members: int) -> Tensor:
    """What every member of a mixture predicts, averaged over its own samples.

    Args:
        log_probs: of every sample, ``[samples · members, examples, classes]``, as
            ``Prediction.sample_log_probs``.
        members: how many there are, as ``lb.members(model)`` says.

    Example:
        >>> samples = torch.tensor([0.5, 0.1, 0.7, 0.1]).log().view(4, 1, 1)
        >>> member_log_probs(samples, 2).exp().flatten()
        tensor([0.6000, 0.1000])
    """
    require(
        members >= 1 and len(log_probs) % members == 0,
        f"{len(log_probs)} samples are not those of {members} members; give lb.members(model)",
    )
    apart = log_probs.unflatten(0, (-1, members))
    return apart.logsumexp(0) - math.log(len(apart))


def diversity(log_probs: Tensor, y: Tensor) -> Score:
    """Disagreement relative to the share of wrong predictions [rank-1, section 3.5].

    Without errors there is nothing to disagree about; samples that err independently and never in
    the same way have a diversity of almost two.

    Args:
        log_probs: of every sample, ``[samples, examples, classes]``.
        y: the true classes ``[examples]``.

    Note:
        The share of wrong predictions is the average over samples. The standard error is that of a
        ratio of means, to first order.
    """
    pairs = disagreements(log_probs)
    _check(log_probs[0], y)
    wrong = (log_probs.argmax(-1) != y).double().mean(0)
    require(bool(wrong.any()), "no sample is ever wrong; a diversity relative to errors needs some")
    ratio = pairs.mean() / wrong.mean()
    return Score(float(ratio), average((pairs - ratio * wrong) / wrong.mean()).error)


def kl_diversity(log_probs: Tensor) -> Score:
    """The KL from one sample's class probabilities to another's, averaged over ordered pairs.

    Args:
        log_probs: of every sample, ``[samples, examples, classes]``.
    """
    _check_samples(log_probs)
    probs, logs, own = (torch.zeros_like(log_probs[0], dtype=torch.float64) for _ in range(3))
    for sample in log_probs.detach():  # one after another, to spare memory
        log = sample.double()
        probs += log.exp()
        logs += log
        own += log.exp() * log
    count = len(log_probs)
    return average((count * own - probs * logs).sum(-1) / (count * (count - 1)))


def disagreements(log_probs: Tensor) -> Tensor:
    """The share of pairs of samples (or members) that predict different classes, by example.

    Args:
        log_probs: of every sample, ``[samples, examples, classes]``.

    Example:
        >>> disagreements(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[1.0, 0.0]]]))
        tensor([0.6667], dtype=torch.float64)
    """
    _check_samples(log_probs)
    count, labels = len(log_probs), log_probs.argmax(-1).mT
    votes = torch.zeros_like(log_probs[0], dtype=torch.float64)
    votes.scatter_add_(-1, labels, torch.ones_like(labels, dtype=torch.float64))
    return 1 - (votes * (votes - 1)).sum(-1) / (count * (count - 1))


def rejection_curve(uncertainty: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Shares rejected, most uncertain first, and the accuracy on what is left.

    Args:
        uncertainty: ``[examples]``, such as ``Prediction.entropy``.
        right: whether the prediction is the true class.

    Example:
        >>> rejection_curve(torch.tensor([0.9, 0.1]), torch.tensor([False, True]))
        (tensor([0.0000, 0.5000]), tensor([0.5000, 1.0000]))
    """
    kept = right[uncertainty.argsort(stable=True)].float().cumsum(0).flip(0)
    left = torch.arange(len(right), 0, -1, device=kept.device)
    return 1 - left / len(right), kept / left


def _check_samples(log_probs: Tensor) -> None:
    require(
        log_probs.ndim == 3 and len(log_probs) >= 2,
        f"samples have shape {tuple(log_probs.shape)}; give [samples, examples, classes] with at "
        "least 2 samples",
    )


def _check(probs: Tensor, y: Tensor) -> None:
    require(
        probs.ndim == 2 and y.shape == probs.shape[:1],
        f"probabilities have shape {tuple(probs.shape)} and classes {tuple(y.shape)}; "
        "give [examples, classes] and [examples]",
    )
    require(
        not y.is_floating_point() and bool(((y >= 0) & (y < probs.shape[-1])).all()),
        f"classes must be whole numbers from 0 to {probs.shape[-1] - 1}",
    )
