"""The metrics that suit classes, yes or no, and numbers."""

from __future__ import annotations

from torch import Tensor

from leanbayes import metrics
from leanbayes.likelihoods import mixture
from leanbayes.metrics import Score, average

__all__ = ["average", "of_binary", "of_classes", "of_numbers"]


def of_classes(log_probs: Tensor, y: Tensor) -> dict[str, Score]:
    """Of classes ``y [examples]``, from log probabilities ``[samples, examples, classes]``."""
    mixed = mixture.log_mean(log_probs)
    probs, entropy = mixed.exp(), mixture.entropy(mixed)
    values = {
        "accuracy": metrics.accuracy(probs, y),
        "brier": metrics.brier(probs, y),
        "ece": metrics.bootstrap(metrics.calibration_error, probs, y),
        "entropy": average(entropy),
        "mutual_information": average((entropy - mixture.entropy(log_probs).mean(0)).clamp_min(0)),
    }
    if len(log_probs) > 1:
        values["disagreement"] = metrics.disagreement(log_probs)
        values["kl_diversity"] = metrics.kl_diversity(log_probs)
        if bool((log_probs.argmax(-1) != y).any()):
            values["diversity"] = metrics.diversity(log_probs, y)
    return values


def of_binary(probs: Tensor, labels: Tensor, y: Tensor) -> dict[str, Score]:
    """Of targets that are on or off; areas where there is one an example, and both occur."""
    right = (labels == y).double()
    values = {"accuracy": average(right.reshape(len(right), -1).mean(-1))}
    truth = y.flatten().bool()
    if len(truth) == len(y) and bool(truth.any()) and not bool(truth.all()):
        areas = {"auc_pr": metrics.average_precision, "auroc": metrics.auroc}
        for name, area in areas.items():
            values[name] = metrics.bootstrap(area, probs.flatten(), truth, strata=truth)
    return values


def of_numbers(mean: Tensor, y: Tensor) -> dict[str, Score]:
    """Of numbers: how far the predictive mean is off."""
    error = (mean - y).square()
    return {"squared_error": average(error.reshape(len(error), -1).mean(-1))}
