"""Measurements of a training: steps and epochs of a recipe, one file per measurement."""

from leanbayes.lab.measurements.base import (
    MEASUREMENTS,
    Measurement,
    MissingMeasurement,
    Subject,
    register_measurement,
    require_random_weights,
)

from leanbayes.lab.measurements import probe  # noqa: F401  # isort: skip

__all__ = [
    "MEASUREMENTS",
    "Measurement",
    "MissingMeasurement",
    "Subject",
    "register_measurement",
    "require_random_weights",
]
