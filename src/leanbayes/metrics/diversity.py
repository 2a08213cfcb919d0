"""Disagreement of the samples or members of a prediction."""

import math

import torch
from torch import Tensor

from leanbayes.errors import require
from leanbayes.metrics.classes import check_classes
from leanbayes.metrics.scores import Score, average


def disagreement(log_probs: Tensor) -> Score:
    """Return how often two samples (or members) predict different classes, averaged over all pairs.

    Args:
        log_probs: log probabilities of every sample, ``[samples, examples, classes]``, as
            ``Prediction.sample_log_probs``; probabilities or other scores do as well.

    Returns:
        The share, with its standard error.
    """
    return average(disagreements(log_probs))


def member_log_probs(log_probs: Tensor, members: int) -> Tensor:
    """Return what every member of a mixture predicts, averaged over its own samples.

    Args:
        log_probs: log probabilities of every sample, ``[samples · members, examples, classes]``, as
            ``Prediction.sample_log_probs``.
        members: number of members, as ``lb.extend.members(model)`` says.

    Returns:
        Log probabilities ``[members, examples, classes]``.

    Raises:
        ValueError: If the samples are not a multiple of the members.
    """
    require(
        members >= 1 and len(log_probs) % members == 0,
        f"{len(log_probs)} samples are not those of {members} members; give "
        "lb.extend.members(model)",
    )
    apart = log_probs.unflatten(0, (-1, members))
    return apart.logsumexp(0) - math.log(len(apart))


def diversity(log_probs: Tensor, y: Tensor) -> Score:
    """Return disagreement relative to the share of wrong predictions [rank-1, section 3.5].

    Without errors there is nothing to disagree about; samples that err independently and never in
    the same way have a diversity of almost two.

    Args:
        log_probs: log probabilities of every sample, ``[samples, examples, classes]``.
        y: the true classes ``[examples]``.

    Returns:
        The ratio, with its standard error.

    Raises:
        ValueError: If no sample is ever wrong.

    Note:
        The share of wrong predictions is the average over samples. The standard error is that of a
        ratio of means, to first order.
    """
    pairs = disagreements(log_probs)
    check_classes(log_probs[0], y)
    wrong = (log_probs.argmax(-1) != y).double().mean(0)
    require(bool(wrong.any()), "no sample is ever wrong; a diversity relative to errors needs some")
    ratio = pairs.mean() / wrong.mean()
    return Score(float(ratio), average((pairs - ratio * wrong) / wrong.mean()).error)


def kl_diversity(log_probs: Tensor) -> Score:
    """Return the KL between class probabilities of two samples, averaged over ordered pairs.

    Args:
        log_probs: log probabilities of every sample, ``[samples, examples, classes]``.

    Returns:
        The KL in nats, with its standard error.

    Raises:
        ValueError: If there are fewer than 2 samples.
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
    """Return the share of pairs of samples (or members) that predict different classes, by example.

    Args:
        log_probs: log probabilities of every sample, ``[samples, examples, classes]``.

    Returns:
        The shares ``[examples]``, in float64.

    Raises:
        ValueError: If there are fewer than 2 samples.
    """
    _check_samples(log_probs)
    count, labels = len(log_probs), log_probs.argmax(-1).mT
    votes = torch.zeros_like(log_probs[0], dtype=torch.float64)
    votes.scatter_add_(-1, labels, torch.ones_like(labels, dtype=torch.float64))
    return 1 - (votes * (votes - 1)).sum(-1) / (count * (count - 1))


def _check_samples(log_probs: Tensor) -> None:
    require(
        log_probs.ndim == 3 and len(log_probs) >= 2,
        f"samples have shape {tuple(log_probs.shape)}; give [samples, examples, classes] with at "
        "least 2 samples",
    )
