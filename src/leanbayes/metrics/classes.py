"""Metrics of class probabilities: accuracy, NLL, Brier score, calibration and diversity."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes.display import DisplayTable, shown_as_table
from leanbayes.errors import require, require_count
from leanbayes.metrics.scores import Score, average, average_over_ties, bootstrap, takes_arrays


@takes_arrays
def nll(log_probs: Tensor, y: Tensor) -> Score:
    """Return the negative log likelihood, in nats.

    Args:
        log_probs: log probabilities ``[examples, classes]``, such as ``Prediction.log_probs``.
        y: the true classes ``[examples]``.

    Returns:
        The NLL, with its standard error.

    Raises:
        ValueError: If the shapes do not fit.
    """
    check_classes(log_probs, y)
    return average(-log_probs.gather(-1, y.unsqueeze(-1)).squeeze(-1))


@takes_arrays
def brier(probs: Tensor, y: Tensor) -> Score:
    """Return the Brier score ``Σ_c (p_c − [c = y])²``: 0 is perfect, 2 is certain and wrong.

    Published tables [k-tied] print it without its constant, as ``Σ p² − 2 p_y``: one less.

    Args:
        probs: probabilities ``[examples, classes]``.
        y: the true classes ``[examples]``.

    Returns:
        The score, with its standard error.

    Raises:
        ValueError: If the shapes do not fit.
    """
    check_classes(probs, y)
    truth = torch.nn.functional.one_hot(y, probs.shape[-1])
    return average((probs - truth).square().sum(-1))


@takes_arrays
def accuracy(probs: Tensor, y: Tensor) -> Score:
    """Return the share of examples whose most probable class is the true one.

    Args:
        probs: probabilities (or any scores) ``[examples, classes]``.
        y: the true classes ``[examples]``.

    Returns:
        The share, with its standard error.

    Raises:
        ValueError: If the shapes do not fit.
    """
    check_classes(probs, y)
    return average((probs.argmax(-1) == y).double())


def check_classes(probs: Tensor, y: Tensor) -> None:
    """Raise unless there is one class for each example, out of those that have a probability."""
    require(
        probs.ndim == 2 and y.shape == probs.shape[:1],
        f"probabilities have shape {tuple(probs.shape)} and classes {tuple(y.shape)}; "
        "give [examples, classes] and [examples]",
    )
    require(
        not y.is_floating_point() and bool(((y >= 0) & (y < probs.shape[-1])).all()),
        f"classes must be whole numbers from 0 to {probs.shape[-1] - 1}",
    )


_TWO_SIDED_95 = 1.959963984540054


@shown_as_table
class Bins(NamedTuple):
    """Examples by confidence, in equal bins between 0 and 1.

    Attributes:
        confidence: the average of every bin.
        accuracy: the share of right predictions in it.
        examples: number of examples.
        calibration_error: the expected calibration error: the average gap between the two, weighted
            by examples, where those of confidence 1 are a separate bin.
    """

    confidence: Tensor
    accuracy: Tensor
    examples: Tensor
    calibration_error: float

    def table(self) -> DisplayTable:
        """Return a row for every bin that has examples."""
        columns = (self.confidence.tolist(), self.accuracy.tolist(), self.examples.tolist())
        rows = [
            [f"{confidence:.3f}", f"{accuracy:.3f}", f"{count:,.0f}"]
            for confidence, accuracy, count in zip(*columns, strict=True)
            if count
        ]
        title = f"calibration error {self.calibration_error:.4f}"
        return DisplayTable(["confidence", "accuracy", "examples"], rows, title, left=())

    @property
    def interval(self) -> tuple[Tensor, Tensor]:
        """Where the accuracy of each bin lies with a confidence of 95%: Wilson's interval.

        It stays within 0 and 1, and is all of that for a bin without examples.

        Example:
            >>> bins = Bins(torch.ones(1), torch.ones(1), torch.tensor([10.0]), 0.0)
            >>> bins.interval[0]
            tensor([0.7225])
        """
        n, p, z = self.examples, self.accuracy, _TWO_SIDED_95
        middle = (n * p + z**2 / 2) / (n + z**2)
        reach = z * (n * p * (1 - p) + z**2 / 4).sqrt() / (n + z**2)
        return (middle - reach).clamp_min(0), (middle + reach).clamp_max(1)


@takes_arrays
def calibration_bins(confidence: Tensor, right: Tensor, bins: int = 15) -> Bins:
    """Sort examples into bins ``[i / bins, (i + 1) / bins)`` of confidence; the last has 1 as well.

    Args:
        confidence: the probability of the predicted class, ``[examples]``.
        right: whether it is the true one.
        bins: number of bins.

    Returns:
        The bins.
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


@takes_arrays
def calibration_error(probs: Tensor, y: Tensor, bins: int = 15) -> Score:
    """Return the expected calibration error (ECE) of the predicted class, in bins of equal width.

    Args:
        probs: probabilities ``[examples, classes]``.
        y: the true classes ``[examples]``.
        bins: number of equal bins of confidence.

    Returns:
        The error, with its standard error.

    Note:
        The standard error is bootstrapped. The error of few examples is biased upwards: bins of
        a perfectly calibrated model have gaps by chance.
    """
    confidence, right = _confidence(probs, y, bins)
    return bootstrap(lambda c, r: calibration_bins(c, r, bins).calibration_error, confidence, right)


@takes_arrays
def adaptive_calibration_error(probs: Tensor, y: Tensor, bins: int = 15) -> Score:
    """Return the expected calibration error of the predicted class, in bins of equal size.

    Bins of equal width leave most of the examples of a good network in one; these do not.

    Args:
        probs: probabilities ``[examples, classes]``.
        y: the true classes ``[examples]``.
        bins: number of bins; no more than examples.

    Returns:
        The error, with its standard error.

    Note:
        The standard error is bootstrapped. Examples of equal confidence count as equally right,
        so that their order changes nothing.
    """
    confidence, right = _confidence(probs, y, bins)

    def error(confidence: Tensor, right: Tensor) -> float:
        ordered = confidence.double().sort().values
        gaps = ordered - average_over_ties(confidence, right)
        parts = gaps.tensor_split(min(bins, len(gaps)))
        return float(torch.stack([part.sum() for part in parts]).abs().sum()) / len(gaps)

    return bootstrap(error, confidence, right)


def _confidence(probs: Tensor, y: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """The probability of the predicted class of every example, and whether it is the true one."""
    check_classes(probs, y)
    require_count("bins", bins, 1)
    confidence, labels = probs.detach().max(-1)
    return confidence, labels == y


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
