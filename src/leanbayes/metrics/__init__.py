"""Metrics, each with its standard error over examples."""

from leanbayes.metrics.classes import (
    Bins,
    accuracy,
    adaptive_calibration_error,
    brier,
    calibration_bins,
    calibration_error,
    disagreement,
    disagreements,
    diversity,
    kl_diversity,
    member_log_probs,
    nll,
)
from leanbayes.metrics.numbers import (
    Coverage,
    coverage_curve,
    crps,
    interval_coverage,
    interval_width,
    rmse,
)
from leanbayes.metrics.ranking import (
    Rejection,
    aurc,
    auroc,
    average_precision,
    rejection_curve,
)
from leanbayes.metrics.scores import Score, average, bootstrap

__all__ = [
    "Bins",
    "Coverage",
    "Rejection",
    "Score",
    "accuracy",
    "adaptive_calibration_error",
    "aurc",
    "auroc",
    "average",
    "average_precision",
    "bootstrap",
    "brier",
    "calibration_bins",
    "calibration_error",
    "coverage_curve",
    "crps",
    "disagreement",
    "disagreements",
    "diversity",
    "interval_coverage",
    "interval_width",
    "kl_diversity",
    "member_log_probs",
    "nll",
    "rejection_curve",
    "rmse",
]
