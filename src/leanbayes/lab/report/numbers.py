"""Numbers as a report prints them, and the names of metrics."""

import math

from leanbayes.lab.data import Dataset
from leanbayes.metrics import Score

METRICS = {
    "negative_elbo": "−ELBO per example",
    "nll": "NLL",
    "average_nll": "mean NLL of single samples",
    "kl": "KL per training example",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "ece": "ECE (15 bins)",
    "adaptive_ece": "ECE (15 groups)",
    "aurc": "AURC",
    "entropy": "predictive entropy",
    "mutual_information": "mutual information",
    "disagreement": "disagreement of samples",
    "diversity": "disagreement over error",
    "kl_diversity": "KL between samples",
    "member_disagreement": "disagreement of members",
    "member_diversity": "disagreement of members over error",
    "auroc": "AUROC",
    "auc_pr": "average precision",
    "squared_error": "squared error",
    "rmse": "root mean square error",
    "crps": "CRPS",
    "coverage_90": "coverage of 90% intervals",
    "width_90": "width of 90% intervals",
}

_IN_UNITS_OF_TARGETS = {"negative_elbo", "nll", "average_nll", "squared_error"}
_IN_UNITS_OF_TARGETS |= {"rmse", "crps", "width_90"}


def target_units(dataset: Dataset | None) -> str:
    """Return the units of a network's targets; an empty text for classes."""
    if dataset is None or dataset.task != "regression":
        return ""
    scaling = dataset.target_scaling
    return "raw" if scaling is None or scaling.is_identity else "standardized"


def metric_name(name: str, units: str = "") -> str:
    """Return a metric in words, with the units of the targets where it depends on them."""
    words = METRICS.get(name, name)
    return f"{words} ({units} targets)" if units and name in _IN_UNITS_OF_TARGETS else words


def number(value: float) -> str:
    """Return four digits that matter, without a long tail of zeros."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.4f}" if 1e-4 <= abs(value) < 1e3 or value == 0 else f"{value:.4g}"


def with_error(estimate: Score) -> str:
    """Return a value, with its standard error where it has one."""
    error = f" ± {number(estimate.error)}" if estimate.error else ""
    return number(estimate.value) + error
